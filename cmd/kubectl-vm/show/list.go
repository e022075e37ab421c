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

// NewListCommand returns the command list.
func NewListCommand(o *kit.Options) *cobra.Command {
	l := &listOptions{Options: o}
	cmd := &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"get"},
		Aliases:    []string{"ls"},
		GroupID:    kit.GroupObserve,
		Short:      "List VMs with their state, size, address and ports",
		Long: "List VMs with their state, size, address and ports.\n\n" +
			"STATE is the state of the container or machine that runs the VM, REASON is the reason for it, and READY\n" +
			"tells whether the VM is as its spec says. ADDRESS is the address of the VM, or of the host if the VM\n" +
			"is reachable only by ports of the host. PORTS are the ports of the host that now lead to the VM, as\n" +
			"HOST:VM. A VM in a pod is reachable at its ADDRESS, on the ports of its spec.",
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
	terminal := kit.TerminalOf(l.Out)
	if l.output.Format == formatWide {
		terminal.Width = 0
	}
	return l.tableOf(all, l.tableColumns(), l.cellsOf).Print(l.Out, terminal)
}

func (l *listOptions) tableColumns() []kit.Column {
	columns := []kit.Column{
		{Name: "NAME"},
		{Name: "STATE"},
		{Name: "READY", DropOrder: 3},
		{Name: "REASON", DropOrder: 1},
		{Name: "CPU", AlignRight: true, DropOrder: 5},
		{Name: "MEMORY", AlignRight: true, DropOrder: 6},
		{Name: "ADDRESS", DropOrder: 4},
		{Name: "PORTS", DropOrder: 2},
		{Name: "AGE", DropOrder: 7},
	}
	if l.output.Format == formatWide {
		columns = append(columns, kit.Column{Name: "DRIVER"}, kit.Column{Name: "RESTARTS", AlignRight: true},
			kit.Column{Name: "CPU%", AlignRight: true}, kit.Column{Name: "MEM%", AlignRight: true}, kit.Column{Name: "IMAGE"}, kit.Column{Name: "ENGINE"}, kit.Column{Name: "ID"})
	}
	return columns
}

// maxPorts is the number of ports that the command list shows for each VM, unless the format is wide.
const maxPorts = 3

func (l *listOptions) cellsOf(vm *api.VirtualMachine) []kit.Cell {
	wide := l.output.Format == formatWide
	ports, limit := vms.PortTexts(vm), maxPorts
	if wide {
		limit = len(ports)
	}
	cells := []kit.Cell{
		{Text: vm.Name},
		vms.StateCell(vm),
		{Text: cmp.Or(string(vms.ConditionOf(vm, api.ConditionReady).Status), vms.NoValue)},
		{Text: cmp.Or(vm.Status.Reason, vms.NoValue)},
		{Text: vms.SizeText(vm, api.ResourceCPU)},
		{Text: vms.SizeText(vm, api.ResourceMemory)},
		{Text: firstAddress(vm.Status.Addresses)},
		{Text: joinFirst(ports, limit)},
		{Text: vms.AgeText(l.Clock.Now(), vm.CreationTimestamp.Time)},
	}
	if wide {
		cells = append(cells, wideCells(vm)...)
	}
	return cells
}

// firstAddress returns the first address: that of the VM, if it has one, otherwise that of the host.
func firstAddress(addresses []string) string {
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

// joinFirst joins the first strings up to limit, and appends the number of the others.
func joinFirst(texts []string, limit int) string {
	if len(texts) == 0 {
		return vms.NoValue
	}
	if len(texts) <= limit {
		return strings.Join(texts, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(texts[:limit], ","), len(texts)-limit)
}
