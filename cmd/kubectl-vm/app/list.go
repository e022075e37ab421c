// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

// formatWide is the output format with all columns.
const formatWide = "wide"

type listOptions struct {
	*Options
	listFlags
	output outputFlag
}

// NewListCommand returns the verb list.
func NewListCommand(o *Options) *cobra.Command {
	l := &listOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		GroupID: groupObserve,
		Short:   "List VMs with their state, size, address and ports",
		Long: "List VMs with their state, size, address and ports.\n\n" +
			"STATE is the state of the server, READY whether it is as the spec says, and REASON why.\n" +
			"ADDRESS is the VM's, or the host's if only ports lead to it. PORTS are the host's ports that lead to\n" +
			"it now, as HOST:VM. A VM that is a pod answers at the ports themselves, at its ADDRESS.",
		Example: o.formatExamples("list", "list -A -o wide", "list -l app=web -o name"),
		Args:    refuseArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	l.output.add(cmd, formatWide)
	l.addFlags(cmd)
	return cmd
}

func (l *listOptions) run(ctx context.Context) error {
	if err := l.output.check(); err != nil {
		return err
	}
	if l.output.printsObjects() {
		return l.printObjects(ctx)
	}
	all, err := l.readVMs(ctx, l.Options)
	if err != nil || len(all) == 0 {
		return err
	}
	return l.printTable(all)
}

func (l *listOptions) printObjects(ctx context.Context) error {
	namespace, err := l.NamespaceOrAll(l.allNamespaces)
	if err != nil {
		return err
	}
	list, err := listObjects(ctx, l.Options, namespace, metav1.ListOptions{LabelSelector: l.selector})
	if err != nil {
		return err
	}
	return l.output.print(l.Out, list)
}

func (l *listOptions) printTable(all []api.VirtualMachine) error {
	screen := screenOf(l.Out)
	if l.output.format == formatWide {
		screen.width = 0
	}
	return l.tableOf(all, l.columns(), l.cellsOf).write(l.Out, screen)
}

func (l *listOptions) columns() []column {
	columns := []column{
		{name: "NAME"},
		{name: "STATE"},
		{name: "READY", expendable: 3},
		{name: "REASON", expendable: 1},
		{name: "CPU", right: true, expendable: 5},
		{name: "MEMORY", right: true, expendable: 6},
		{name: "ADDRESS", expendable: 4},
		{name: "PORTS", expendable: 2},
		{name: "AGE", expendable: 7},
	}
	if l.output.format == formatWide {
		columns = append(columns, column{name: "DRIVER"}, column{name: "RESTARTS", right: true},
			column{name: "CPU%", right: true}, column{name: "MEM%", right: true}, column{name: "IMAGE"}, column{name: "ENGINE"}, column{name: "ID"})
	}
	return columns
}

// mostPorts is how many ports of a VM list shows, unless it is wide.
const mostPorts = 3

func (l *listOptions) cellsOf(vm *api.VirtualMachine) []cell {
	wide := l.output.format == formatWide
	ports, most := portsOf(vm), mostPorts
	if wide {
		most = len(ports)
	}
	cells := []cell{
		{text: vm.Name},
		stateOf(vm),
		{text: cmp.Or(string(conditionOf(vm, api.ConditionReady).Status), none)},
		{text: cmp.Or(vm.Status.Reason, none)},
		{text: sizeText(vm, api.ResourceCPU)},
		{text: sizeText(vm, api.ResourceMemory)},
		{text: firstOf(vm.Status.Addresses)},
		{text: joinSome(ports, most)},
		{text: ageText(l.Clock.Now(), vm.CreationTimestamp.Time)},
	}
	if wide {
		cells = append(cells, wideCells(vm)...)
	}
	return cells
}

// firstOf returns the first of some addresses, which belongs to the VM itself if it has one.
func firstOf(addresses []string) string {
	if len(addresses) == 0 {
		return none
	}
	return addresses[0]
}

func wideCells(vm *api.VirtualMachine) []cell {
	cpu, memory, engine, id := none, none, none, none
	if s := vm.Status.Server; s != nil {
		id = cmp.Or(servers.ShortID(s.ID), none)
	}
	if u, known := usageOf(vm); known {
		cpu, memory = percentText(u.cpuPercent), percentText(u.memoryPercent)
	}
	if b := vm.Status.Binding; b != nil {
		engine = servers.ShortID(b.EngineID)
	}
	return []cell{
		{text: cmp.Or(driverOf(vm), none)},
		{text: strconv.FormatInt(vm.Status.RestartCount, 10)},
		{text: cpu},
		{text: memory},
		{text: cmp.Or(imageOf(vm), none)},
		{text: engine},
		{text: id},
	}
}
