// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// formatWide is the output format with all columns.
const formatWide = "wide"

type listOptions struct {
	*kit.Options
	listFlags
	output kit.OutputFlag
}

// NewListCommand returns the verb list.
func NewListCommand(o *kit.Options) *cobra.Command {
	l := &listOptions{Options: o}
	cmd := &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"get"},
		Aliases:    []string{"ls"},
		GroupID:    kit.GroupObserve,
		Short:      "List VMs with their state, size, address and ports",
		Long: "List VMs with their state, size, address and ports.\n\n" +
			"STATE is the state of the server, READY whether it is as the spec says, and REASON why.\n" +
			"ADDRESS is the VM's, or the host's if only ports lead to it. PORTS are the host's ports that lead to\n" +
			"it now, as HOST:VM. A VM that is a pod answers at the ports themselves, at its ADDRESS.",
		Example: o.FormatExamples("list", "list -A -o wide", "list -l app=web -o name"),
		Args:    kit.RefuseArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return l.listVMs(cmd.Context()) },
	}
	l.output.AddFlag(cmd, formatWide)
	l.addFlags(cmd)
	return cmd
}

func (l *listOptions) listVMs(ctx context.Context) error {
	if err := l.output.Check(); err != nil {
		return err
	}
	if l.output.PrintsObjects() {
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
	list, err := vms.ListObjects(ctx, l.Options, namespace, metav1.ListOptions{LabelSelector: l.selector})
	if err != nil {
		return err
	}
	return l.output.PrintObjects(l.Out, list)
}

func (l *listOptions) printTable(all []api.VirtualMachine) error {
	screen := kit.ScreenOf(l.Out)
	if l.output.Format == formatWide {
		screen.Width = 0
	}
	return l.tableOf(all, l.tableColumns(), l.cellsOf).Print(l.Out, screen)
}

func (l *listOptions) tableColumns() []kit.Column {
	columns := []kit.Column{
		{Name: "NAME"},
		{Name: "STATE"},
		{Name: "READY", Expendable: 3},
		{Name: "REASON", Expendable: 1},
		{Name: "CPU", AlignRight: true, Expendable: 5},
		{Name: "MEMORY", AlignRight: true, Expendable: 6},
		{Name: "ADDRESS", Expendable: 4},
		{Name: "PORTS", Expendable: 2},
		{Name: "AGE", Expendable: 7},
	}
	if l.output.Format == formatWide {
		columns = append(columns, kit.Column{Name: "DRIVER"}, kit.Column{Name: "RESTARTS", AlignRight: true},
			kit.Column{Name: "CPU%", AlignRight: true}, kit.Column{Name: "MEM%", AlignRight: true}, kit.Column{Name: "IMAGE"}, kit.Column{Name: "ENGINE"}, kit.Column{Name: "ID"})
	}
	return columns
}

// mostPorts is how many ports of a VM list shows, unless it is wide.
const mostPorts = 3

func (l *listOptions) cellsOf(vm *api.VirtualMachine) []kit.Cell {
	wide := l.output.Format == formatWide
	ports, most := vms.PortTexts(vm), mostPorts
	if wide {
		most = len(ports)
	}
	cells := []kit.Cell{
		{Text: vm.Name},
		vms.StateCell(vm),
		{Text: cmp.Or(string(vms.ConditionOf(vm, api.ConditionReady).Status), vms.NoValue)},
		{Text: cmp.Or(vm.Status.Reason, vms.NoValue)},
		{Text: vms.SizeText(vm, api.ResourceCPU)},
		{Text: vms.SizeText(vm, api.ResourceMemory)},
		{Text: firstOf(vm.Status.Addresses)},
		{Text: joinSome(ports, most)},
		{Text: vms.AgeText(l.Clock.Now(), vm.CreationTimestamp.Time)},
	}
	if wide {
		cells = append(cells, wideCells(vm)...)
	}
	return cells
}

// firstOf returns the first of some addresses, which belongs to the VM itself if it has one.
func firstOf(addresses []string) string {
	if len(addresses) == 0 {
		return vms.NoValue
	}
	return addresses[0]
}

func wideCells(vm *api.VirtualMachine) []kit.Cell {
	cpu, memory, engine, id := vms.NoValue, vms.NoValue, vms.NoValue, vms.NoValue
	if s := vm.Status.Server; s != nil {
		id = cmp.Or(servers.ShortID(s.ID), vms.NoValue)
	}
	if u, known := usageOf(vm); known {
		cpu, memory = percentText(u.cpuPercent), percentText(u.memoryPercent)
	}
	if b := vm.Status.Binding; b != nil {
		engine = servers.ShortID(b.EngineID)
	}
	return []kit.Cell{
		{Text: cmp.Or(vms.DriverOf(vm), vms.NoValue)},
		{Text: strconv.FormatInt(vm.Status.RestartCount, 10)},
		{Text: cpu},
		{Text: memory},
		{Text: cmp.Or(vms.ImageOf(vm), vms.NoValue)},
		{Text: engine},
		{Text: id},
	}
}

// joinSome joins the first texts, and counts the others.
func joinSome(texts []string, most int) string {
	if len(texts) == 0 {
		return vms.NoValue
	}
	if len(texts) <= most {
		return strings.Join(texts, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(texts[:most], ","), len(texts)-most)
}
