// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// plainPeriod is the shortest time between two lines that only report progress, on an output that is
// not a terminal.
const plainPeriod = 10 * time.Second

// progress prints the steps of a VM's creation.
type progress struct {
	clock    clock.WithTicker
	terminal kit.Terminal
	// program is the command with which the user calls this program.
	program string
	// print prints a permanent line.
	print func(text string)
	began time.Time

	mu        sync.Mutex // guards the fields below, which describeProgress reads
	vm        *api.VirtualMachine
	step      string // the reason of the step in progress
	stepBegan time.Time
	printed   time.Time // when a line was last printed
	attempts  int32
	hasEnded  bool // the server has ended by itself
}

// stepNames are the texts for completed steps, keyed by the reason during the step.
var stepNames = map[string]string{
	api.ReasonCreating: "server created", api.ReasonFetching: "image fetched", api.ReasonStarting: "server started",
	api.ReasonUnschedulable: "node found", api.ReasonBooting: "guest booted", api.ReasonProbeFailing: "guest answers", api.ReasonRestarting: "server restarted", api.ReasonUpdating: "change applied",
}

// observeVM prints the progress that a version of the VM shows.
func (p *progress) observeVM(vm *api.VirtualMachine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, before := p.clock.Now(), p.step
	p.vm, p.step = vm, vm.Status.Reason
	failed := p.reportFailure(vm, now)
	switch {
	case p.step == before:
	case p.step == api.ReasonRestarting:
		failed = true
		p.reportEnd(vm, now)
	case !failed && vm.Status.Phase != api.PhaseFailed:
		p.endStep(before, now)
	}
	if !p.terminal.IsTerminal && !failed && !vms.IsReady(vm) && p.mayPrint(before, now) {
		p.printed = now
		p.print("  " + p.stepText())
	}
}

// mayPrint reports whether a progress line is due on an output that is not a terminal. After a failure, only
// further failures are printed.
func (p *progress) mayPrint(lastStep string, now time.Time) bool {
	if p.attempts > 0 && p.step != api.ReasonFetching {
		return false
	}
	return p.step != lastStep || now.Sub(p.printed) >= plainPeriod
}

// endStep prints a completed step. The caller holds mu.
func (p *progress) endStep(step string, now time.Time) {
	took := now.Sub(p.stepBegan)
	p.stepBegan = now
	name := stepNames[step]
	if name == "" || !p.terminal.IsTerminal {
		return
	}
	p.print(fmt.Sprintf("  %s %-28s %s", p.terminal.Paint("✓", kit.Green), name, p.terminal.Paint(elapsedText(took), kit.Faint)))
}

// reportFailure prints a new failure, if the VM has one, and reports whether it has. The caller holds mu.
func (p *progress) reportFailure(vm *api.VirtualMachine, now time.Time) bool {
	op := vm.Status.Operation
	if op == nil || op.Attempts <= p.attempts || op.LastError == "" {
		return false
	}
	first := p.attempts == 0
	p.attempts, p.stepBegan = op.Attempts, now
	text := op.Reason + ": " + op.LastError
	if op.NextRetryTime != nil {
		text += fmt.Sprintf(" (next try in %s)", max(op.NextRetryTime.Sub(now), 0).Round(time.Second))
	}
	p.printFailure(text)
	if first && op.Failure != api.FailureRefused {
		p.print(fmt.Sprintf("    What to do: %s explain %s", p.program, vm.Name))
	}
	p.printed = now
	return true
}

// reportEnd prints that the server has ended by itself. The caller holds mu.
func (p *progress) reportEnd(vm *api.VirtualMachine, now time.Time) {
	p.printFailure(vm.Status.Reason + ": " + vm.Status.Message)
	if !p.hasEnded {
		p.print(fmt.Sprintf("    What it printed: %s logs %s", p.program, vm.Name))
	}
	p.hasEnded, p.stepBegan, p.printed = true, now, now
}

// printFailure prints a failure, wrapped to the width of the screen.
func (p *progress) printFailure(text string) {
	const indent = "    "
	lines := printable.Wrap(printable.Line(text), max(p.terminal.Width-len(indent), 0))
	p.print("  " + p.terminal.Paint("✗", kit.Red) + " " + strings.Join(lines, "\n"+indent))
}

// describeProgress returns the text of the progress line.
func (p *progress) describeProgress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	return fmt.Sprintf("%s  %s", elapsedText(now.Sub(p.began).Truncate(time.Second)), p.stepText())
}

// stepText describes the step in progress. The caller holds mu.
func (p *progress) stepText() string {
	if p.step == "" {
		return "waiting for a controller"
	}
	return vms.ActivityText(p.vm)
}
