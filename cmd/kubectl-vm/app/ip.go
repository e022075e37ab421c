// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// ipOptions are the flags of ip.
type ipOptions struct {
	*Options
	output jsonFlag
}

// NewIPCommand returns the verb ip.
func NewIPCommand(o *Options) *cobra.Command {
	i := &ipOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "ip NAME",
		Short: "Show the network interfaces that a VM itself sees",
		Long: "Show the network interfaces that a VM itself sees: those of a container, or what\n" +
			"the QEMU guest agent of a machine reports.",
		Args: requireNameAndCommand(noCommand), Example: o.formatExamples("ip web"),
		RunE: func(cmd *cobra.Command, args []string) error { return i.run(cmd.Context(), args[0]) },
	})
	i.output.addFlag(cmd, "output format: json")
	return cmd
}

// maxInterfaces limits the answer, which a guest may have a part in, in bytes.
const maxInterfaces = 1 << 20

func (i *ipOptions) run(ctx context.Context, name string) error {
	if err := i.output.check(); err != nil {
		return err
	}
	from, err := findTarget(ctx, i.Options, name, streamsapi.Interfaces)
	if err != nil {
		return err
	}
	body, err := from.openStream(ctx, streamsapi.Interfaces, nil)
	if err != nil {
		return from.describeError(ctx, err)
	}
	defer func() { _ = body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(body, maxInterfaces))
	if err != nil {
		return err
	}
	return i.printAddresses(answer)
}

func (i *ipOptions) printAddresses(answer []byte) error {
	var interfaces []struct {
		Name      string         `json:"name"`
		MAC       string         `json:"mac"`
		Addresses []netip.Prefix `json:"addresses"`
	}
	if err := json.Unmarshal(answer, &interfaces); err != nil {
		return fmt.Errorf("read the interfaces: %w", err)
	}
	if i.output.isSet() {
		var indented bytes.Buffer
		if err := json.Indent(&indented, bytes.TrimSpace(answer), "", "    "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(i.Out, indented.String())
		return err
	}
	t := table{columns: []column{{name: "INTERFACE"}, {name: "MAC"}, {name: "ADDRESS"}}}
	for _, nic := range interfaces {
		name, mac := nic.Name, cmp.Or(nic.MAC, "-")
		if len(nic.Addresses) == 0 {
			t.addRow(cell{text: name}, cell{text: mac}, cell{text: "-"})
		}
		for _, a := range nic.Addresses {
			t.addRow(cell{text: name}, cell{text: mac}, cell{text: a.String()})
			name, mac = "", ""
		}
	}
	return t.write(i.Out, screenOf(i.Out))
}
