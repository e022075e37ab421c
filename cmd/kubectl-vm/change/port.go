// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/spec"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// NewPortCommand returns the commands port add and port rm.
func NewPortCommand(o *kit.Options) *cobra.Command {
	return kit.NewVerbGroup(&cobra.Command{
		Use:     "port",
		GroupID: kit.GroupLifecycle,
		Short:   "Add or remove ports of the host that lead to a VM",
	}, newPortAddCommand(o), newPortRemoveCommand(o))
}

func newPortAddCommand(o *kit.Options) *cobra.Command {
	c := &changeOptions{Options: o}
	cmd := &cobra.Command{
		Use:   "add NAME PORT...",
		Short: "Open ports of the host that lead to a VM",
		Long: "Open ports of the host that lead to a VM. A port is [NAME=][HOSTIP:][HOSTPORT:]PORT[/udp]; without\n" +
			"a host port the engine chooses one, which show NAME lists. The change waits for a restart.",
		Example: o.FormatExamples("port add web 8080:80", "port add web ssh=127.0.0.1:2222:22 53:53/udp"),
		Args:    requireNameAndPorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeVM(cmd.Context(), args[0], "changed", func(vm *api.VirtualMachine) (*specChange, error) {
				ports, err := spec.AddPorts(vm.Spec.Ports, args[1:])
				return portsChange(ports, ports[min(len(vm.Spec.Ports), len(ports)):], "open "), err
			})
		},
		ValidArgsFunction: vms.CompleteVM(o),
	}
	c.addFlags(cmd)
	return cmd
}

func newPortRemoveCommand(o *kit.Options) *cobra.Command {
	c := &changeOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "rm NAME PORT...",
		Aliases: []string{"remove"},
		Short:   "Close ports of the host that lead to a VM",
		Long:    "Close ports of the host that lead to a VM, each by its name, its number in the VM, or as for\nport add. The change waits for a restart.",
		Example: o.FormatExamples("port rm web 80", "port rm web ssh", "port rm web 8080:80"),
		Args:    requireNameAndPorts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changeVM(cmd.Context(), args[0], "changed", func(vm *api.VirtualMachine) (*specChange, error) {
				left, removed, err := spec.RemovePorts(vm.Spec.Ports, args[1:])
				return portsChange(left, removed, "close "), err
			})
		},
		ValidArgsFunction: vms.CompleteVM(o),
	}
	c.addFlags(cmd)
	return cmd
}

func requireNameAndPorts(_ *cobra.Command, args []string) error {
	if len(args) < 2 {
		return errors.New("give NAME and at least one PORT")
	}
	return nil
}

// portsChange returns the change of spec.ports to ports. verb says what happens to the changed ports.
func portsChange(ports, changed []api.Port, verb string) *specChange {
	change := &specChange{patch: map[string]any{"ports": ports}}
	for _, p := range changed {
		change.fields = append(change.fields, changedField{path: "ports", text: verb + spec.NamedPortText(p)})
	}
	return change
}
