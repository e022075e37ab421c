// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

// topPeriod is the time between two looks at whether something has changed.
const topPeriod = time.Second

// barLength is the length of the bars beside percentages.
const barLength = 10

// Values of --sort-by.
const (
	sortByCPU    = "cpu"
	sortByMemory = "memory"
	sortByName   = "name"
)

type topOptions struct {
	*Options
	allNamespaces bool
	selector      string
	sortBy        string
	noHeaders     bool
	watch         bool
}

// NewTopCommand returns the verb top.
func NewTopCommand(o *Options) *cobra.Command {
	t := &topOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "top",
		GroupID: groupObserve,
		Short:   "Show what VMs use",
		Long: "Show what VMs use, those that use most first.\n\n" +
			"CPU is in CPUs, and MEMORY in bytes; both are followed by what the VM has, and by the share of\n" +
			"it. Drover takes a sample of each server every 30 s (--usage-period), and reports changes of at\n" +
			"least one per cent.",
		Example: o.examples("top", "top --watch", "top -A --sort-by memory"),
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	addListFlags(cmd, &t.allNamespaces, &t.selector)
	cmd.Flags().StringVar(&t.sortBy, "sort-by", sortByCPU, "cpu, memory or name")
	cmd.Flags().BoolVar(&t.noHeaders, "no-headers", false, "print no header")
	cmd.Flags().BoolVarP(&t.watch, "watch", "w", false, "follow changes, until Ctrl-C")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{sortByCPU, sortByMemory, sortByName}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *topOptions) run(ctx context.Context) error {
	if !slices.Contains([]string{sortByCPU, sortByMemory, sortByName}, t.sortBy) {
		return fmt.Errorf("--sort-by %q: allowed are cpu, memory and name", t.sortBy)
	}
	namespace, err := t.namespaceOf(t.allNamespaces)
	if err != nil {
		return err
	}
	opts := metav1.ListOptions{LabelSelector: t.selector}
	if t.watch {
		return t.runWatch(ctx, namespace, opts)
	}
	vms, err := t.listForTable(ctx, namespace, opts)
	if err != nil {
		return err
	}
	if len(vms) == 0 {
		t.printNothingFound(namespace, t.selector)
		return nil
	}
	return t.table(vms, false).write(t.Out, screenOf(t.Out))
}

// table returns the VMs in their order.
func (t *topOptions) table(vms []api.VirtualMachine, bars bool) *table {
	t.sort(vms)
	out := &table{columns: t.columns(bars), noHeaders: t.noHeaders}
	for i := range vms {
		out.addRow(t.row(&vms[i], bars)...)
	}
	return out
}

func (t *topOptions) sort(vms []api.VirtualMachine) {
	key := func(vm *api.VirtualMachine) float64 {
		u, known := usageOf(vm)
		switch {
		case t.sortBy == sortByName:
			return 0
		case !known:
			return -1
		case t.sortBy == sortByMemory:
			return u.bytes
		}
		return u.cpus
	}
	slices.SortStableFunc(vms, func(a, b api.VirtualMachine) int {
		return cmp.Or(cmp.Compare(key(&b), key(&a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (t *topOptions) columns(bars bool) []column {
	columns := []column{{name: "NAME"}, {name: "STATE", expendable: 3}, {name: "CPU", right: true, expendable: 1}, {name: "CPU%", right: true}}
	if bars {
		columns = append(columns, column{expendable: 4})
	}
	columns = append(columns, column{name: "MEMORY", right: true, expendable: 2}, column{name: "MEM%", right: true})
	if bars {
		columns = append(columns, column{expendable: 5})
	}
	if t.allNamespaces {
		columns = append([]column{{name: "NAMESPACE"}}, columns...)
	}
	return columns
}

func (t *topOptions) row(vm *api.VirtualMachine, bars bool) []cell {
	hasCPU, memory := sizeText(vm, api.ResourceCPU), vm.Spec.Resource[api.ResourceMemory]
	cpu, cpuShare, used, share := none+"/"+hasCPU, none, none+"/"+memory.String(), none
	u, known := usageOf(vm)
	if known {
		cpu, cpuShare = strconv.FormatFloat(u.cpus, 'f', 2, 64)+"/"+hasCPU, percent(u.cpuPercent)
		used, share = bytesText(u.bytes, memory)+"/"+memory.String(), percent(u.memoryPercent)
	}
	row := []cell{{text: vm.Name}, stateOf(vm), {text: cpu}, {text: cpuShare}}
	if bars {
		row = append(row, usageBar(u.cpuPercent, known))
	}
	row = append(row, cell{text: used}, cell{text: share})
	if bars {
		row = append(row, usageBar(u.memoryPercent, known))
	}
	if t.allNamespaces {
		row = append([]cell{{text: vm.Namespace}}, row...)
	}
	return row
}

func usageBar(share float64, known bool) cell {
	if !known {
		return cell{}
	}
	return bar(share, barLength)
}

// fleet is the VMs that top --watch follows.
type fleet struct {
	mu      sync.Mutex
	vms     map[types.NamespacedName]api.VirtualMachine
	changed bool
	lost    error
}

func (f *fleet) seeAll(vms []api.VirtualMachine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed, f.vms = true, make(map[types.NamespacedName]api.VirtualMachine, len(vms))
	for i := range vms {
		f.vms[types.NamespacedName{Namespace: vms[i].Namespace, Name: vms[i].Name}] = vms[i]
	}
	return false
}

func (f *fleet) seeOne(kind watch.EventType, vm *api.VirtualMachine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}
	if f.changed = true; kind == watch.Deleted {
		delete(f.vms, key)
	} else {
		f.vms[key] = *vm
	}
	return false
}

func (f *fleet) setLost(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed, f.lost = f.changed || (err == nil) != (f.lost == nil), err
}

// take returns the VMs if something has changed since the last call.
func (f *fleet) take(always bool) (vms []api.VirtualMachine, changed bool, lost error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms == nil || !f.changed && !always {
		return nil, false, f.lost
	}
	f.changed = false
	vms = make([]api.VirtualMachine, 0, len(f.vms))
	for _, vm := range f.vms {
		vms = append(vms, vm)
	}
	return vms, true, f.lost
}

// runWatch shows the VMs until ctx ends: in place on a terminal, else as a table for each
// change.
func (t *topOptions) runWatch(ctx context.Context, namespace string, opts metav1.ListOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &fleet{}
	ended := make(chan error, 1)
	go func() {
		ended <- t.follow(ctx, namespace, opts, observer{all: f.seeAll, one: f.seeOne, lost: f.setLost})
	}()
	screen := screenOf(t.Out)
	if screen.terminal {
		_, _ = io.WriteString(t.Out, enterScreen)
		defer func() { _, _ = io.WriteString(t.Out, leaveScreen) }()
	}
	return t.draw(ctx, f, ended)
}

// Sequences that switch to a screen of its own, hiding the cursor, and back, and that begin to
// draw it from its upper left corner.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	homeScreen  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func (t *topOptions) draw(ctx context.Context, f *fleet, ended <-chan error) error {
	ticker := t.Clock.NewTicker(topPeriod)
	defer ticker.Stop()
	last := screen{}
	for {
		now := screenOf(t.Out)
		if vms, changed, lost := f.take(now != last); changed {
			if err := t.show(now, vms, lost); err != nil {
				return err
			}
			last = now
		}
		select {
		case err := <-ended:
			if ctx.Err() != nil || errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		case <-ticker.C():
		}
	}
}

// show prints the VMs, or on a terminal as many as it has room for.
func (t *topOptions) show(s screen, vms []api.VirtualMachine, lost error) error {
	lines := append([]string{t.summary(vms, lost) + "\n", "\n"}, t.table(vms, s.terminal).lines(s)...)
	if !s.terminal {
		_, err := io.WriteString(t.Out, strings.Join(append(lines, "\n"), ""))
		return err
	}
	if more := len(lines) - s.height; more > 0 {
		lines = append(lines[:s.height-1], fmt.Sprintf("(%d more)\n", more+1))
	}
	lines[0] = shorten(strings.TrimSuffix(lines[0], "\n"), s.width) + "\n"
	text := strings.ReplaceAll(strings.Join(lines, ""), "\n", clearLine+"\r\n")
	_, err := io.WriteString(t.Out, homeScreen+strings.TrimSuffix(text, "\r\n")+clearBelow)
	return err
}

// summary returns the first line.
func (t *topOptions) summary(vms []api.VirtualMachine, lost error) string {
	var cpus, bytes, allCPUs, allBytes float64
	states := map[string]int{}
	for i := range vms {
		cpu, memory := vms[i].Spec.Resource[api.ResourceCPU], vms[i].Spec.Resource[api.ResourceMemory]
		allCPUs, allBytes = allCPUs+cpu.AsApproximateFloat64(), allBytes+memory.AsApproximateFloat64()
		u, _ := usageOf(&vms[i])
		cpus, bytes = cpus+u.cpus, bytes+u.bytes
		states[stateOf(&vms[i]).text]++
	}
	text := fmt.Sprintf("%s  %s%s  CPU %.2f/%g  memory %s/%s", t.Clock.Now().Format(time.TimeOnly), servers.Count(len(vms), "VM"), statesText(states),
		cpus, allCPUs, bytesText(bytes, decimalBytes), bytesText(allBytes, decimalBytes))
	if lost != nil {
		text += "  (no answer from the API server)"
	}
	return text
}

// statesText returns how many VMs have which state.
func statesText(states map[string]int) string {
	names := make([]string, 0, len(states))
	for name := range states {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(states[b]-states[a], cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", states[name], name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
