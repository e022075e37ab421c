// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

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
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// ipOptions are the flags of ip.
type ipOptions struct {
	*kit.Options
	output kit.JSONFlag
}

// NewIPCommand returns the command ip.
func NewIPCommand(o *kit.Options) *cobra.Command {
	i := &ipOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "ip NAME",
		Short: "Show the network interfaces that a VM itself sees",
		Long: "Show the network interfaces that a VM itself sees: those of a container, or what\n" +
			"the QEMU guest agent of a machine reports.",
		Args: kit.RequireName(kit.WithoutCommand), Example: o.FormatExamples("ip web"),
		RunE: func(cmd *cobra.Command, args []string) error { return i.printInterfaces(cmd.Context(), args[0]) },
	})
	i.output.AddFlag(cmd, "output format: json")
	return cmd
}

// maxInterfaces is the largest answer, in bytes. A guest may determine a part of the answer.
const maxInterfaces = 1 << 20

func (i *ipOptions) printInterfaces(ctx context.Context, name string) error {
	if err := i.output.Check(); err != nil {
		return err
	}
	target, err := vms.FindTarget(ctx, i.Options, name, streamsapi.Interfaces)
	if err != nil {
		return err
	}
	body, err := target.OpenStream(ctx, streamsapi.Interfaces, nil)
	if err != nil {
		return target.WrapError(ctx, err)
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
	if i.output.IsSet() {
		var indented bytes.Buffer
		if err := json.Indent(&indented, bytes.TrimSpace(answer), "", "    "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(i.Out, indented.String())
		return err
	}
	t := kit.Table{Columns: []kit.Column{{Name: "INTERFACE"}, {Name: "MAC"}, {Name: "ADDRESS"}}}
	for _, nic := range interfaces {
		name, mac := nic.Name, cmp.Or(nic.MAC, "-")
		if len(nic.Addresses) == 0 {
			t.AddRow(kit.Cell{Text: name}, kit.Cell{Text: mac}, kit.Cell{Text: "-"})
		}
		for _, a := range nic.Addresses {
			t.AddRow(kit.Cell{Text: name}, kit.Cell{Text: mac}, kit.Cell{Text: a.String()})
			name, mac = "", ""
		}
	}
	return t.Print(i.Out, kit.TerminalOf(i.Out))
}
