// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// ipOptions are the flags of ip.
type ipOptions struct {
	connection
	output string
}

// NewIPCommand returns the verb ip.
func NewIPCommand(o *Options) *cobra.Command {
	i := &ipOptions{connection: connection{Options: o}}
	cmd := i.newConnectCommand(&cobra.Command{
		Use:   "ip NAME",
		Short: "Show the network interfaces that a VM itself sees",
		Long: "Show the network interfaces that a VM itself sees: those of a container, or what the QEMU guest agent\n" +
			"of a machine reports.",
		Args: oneName(false),
		RunE: func(cmd *cobra.Command, args []string) error { return i.run(cmd.Context(), args[0]) },
	})
	cmd.Flags().StringVarP(&i.output, "output", "o", "", "output format: json")
	return cmd
}

// maxInterfaces limits the answer, which a guest may have a part in, in bytes.
const maxInterfaces = 1 << 20

func (i *ipOptions) run(ctx context.Context, name string) error {
	if i.output != "" && i.output != "json" {
		return fmt.Errorf("--output is %q: it must be json or left out", i.output)
	}
	client, namespace, err := i.connect(ctx)
	if err != nil {
		return err
	}
	body, err := client.Get(ctx, namespace, name, streamsapi.Interfaces, nil)
	if err != nil {
		return streamError(err)
	}
	defer func() { _ = body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(body, maxInterfaces))
	if err != nil {
		return err
	}
	return i.print(answer)
}

func (i *ipOptions) print(answer []byte) error {
	var interfaces []struct {
		Name      string         `json:"name"`
		MAC       string         `json:"mac"`
		Addresses []netip.Prefix `json:"addresses"`
	}
	if err := json.Unmarshal(answer, &interfaces); err != nil {
		return fmt.Errorf("read the interfaces: %w", err)
	}
	if i.output == "json" {
		_, err := fmt.Fprintln(i.Out, strings.TrimSpace(string(answer)))
		return err
	}
	table := printers.GetNewTabWriter(i.Out)
	_, _ = fmt.Fprintln(table, "INTERFACE\tMAC\tADDRESSES")
	for _, nic := range interfaces {
		var addresses []string
		for _, a := range nic.Addresses {
			addresses = append(addresses, a.String())
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", printable(nic.Name), printable(nic.MAC), strings.Join(addresses, ","))
	}
	return table.Flush()
}

// printable replaces what a guest could use to change the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
