// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// DefaultWait is how long a wait lasts unless --timeout says otherwise.
const DefaultWait = 10 * time.Minute

// Errors of a wait for one VM.
var (
	ErrDeleted = errors.New("the VM was deleted during the wait")
	ErrStalled = errors.New("only a new spec can help")
)

// Goal reports whether a VM has reached an awaited state. An error means that it cannot reach the state.
type Goal func(vm *api.VirtualMachine) (bool, error)

// WhenReady returns the goal that a VM is as its spec of a generation says, or as a later spec says.
func WhenReady(generation int64) Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		switch {
		case vm.DeletionTimestamp != nil:
			return false, ErrDeleted
		case vm.Status.ObservedGeneration < generation:
			return false, nil
		case IsStalled(vm):
			return false, fmt.Errorf("%w: %s: %s", ErrStalled, vm.Status.Reason, printable.Line(vm.Status.Message))
		}
		return IsReady(vm) && isRestartHandled(vm), nil
	}
}

// WhenPowered returns the goal that a VM has the power state of a generation of its spec. Unlike
// WhenReady, it ignores fields that wait for a restart or are refused.
func WhenPowered(generation int64) Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		status := &vm.Status
		unready := status.Reason == api.ReasonChangePending || status.RefusedField != nil
		settled := status.ObservedGeneration >= generation && (status.Operation == nil || OnlyCountsRestarts(vm)) && isRestartHandled(vm)
		if settled && unready && vm.DeletionTimestamp == nil && status.Phase == phaseOf(vm.Spec.Action) {
			return true, nil
		}
		return WhenReady(generation)(vm)
	}
}

// phaseOf returns the phase of a VM that has the power state of an action.
func phaseOf(action api.Action) api.Phase {
	switch action {
	case api.ActionStopped:
		return api.PhaseStopped
	case api.ActionPaused:
		return api.PhasePaused
	default:
		return api.PhaseActive
	}
}

// isRestartHandled reports whether the last requested restart was done. The user may have written
// fractions of a second in the spec; the status has whole seconds.
func isRestartHandled(vm *api.VirtualMachine) bool {
	want, have := vm.Spec.RestartedAt, vm.Status.RestartedAt
	return want.IsZero() || (have != nil && want.Truncate(time.Second).Equal(have.Time))
}

// AwaitedVM is a VM for which a Waiter waits.
type AwaitedVM struct {
	VM *api.VirtualMachine // the VM as last seen
	// Reached is the goal that ends the wait, unless UntilDeleted is set.
	Reached Goal
	// UntilDeleted is set if the wait ends when the VM is deleted.
	UntilDeleted bool
	// Unchanged is set if the user was already told that the VM did not need a change.
	Unchanged bool
}

// Waiter waits for VMs, and shows the progress on a line.
type Waiter struct {
	mu sync.Mutex // guards Open, which the progress line reads
	// Open has the VMs whose wait has not ended.
	Open map[types.UID]*AwaitedVM
	// Ended is called for each VM whose wait has ended.
	Ended func(awaited *AwaitedVM, err error)
	// Seen, unless nil, is called for each version of a VM.
	Seen func(vm *api.VirtualMachine)
	// Describe, unless nil, returns the text of the progress line.
	Describe func() string

	line *kit.ProgressLine
}

// AwaitVM waits for one VM, and returns its last version and the error that ended the wait. After
// Ctrl-C the error is context.Canceled.
func AwaitVM(ctx context.Context, o *kit.Options, timeout time.Duration, w *Waiter, vm *AwaitedVM) (last *api.VirtualMachine, err error) {
	w.Open = map[types.UID]*AwaitedVM{vm.VM.UID: vm}
	w.Ended = func(_ *AwaitedVM, failed error) { err = failed }
	stopped := AwaitVMs(ctx, o, timeout, w)
	return vm.VM, cmp.Or(stopped, err)
}

// AwaitVMs waits until the wait for every VM has ended. A timeout, unless 0, or a failure ends the waits that
// are left, with an error for Waiter.Ended. Ctrl-C ends AwaitVMs itself, with context.Canceled.
func AwaitVMs(ctx context.Context, o *kit.Options, timeout time.Duration, w *Waiter) error {
	if len(w.Open) == 0 {
		return nil
	}
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	describe := w.Describe
	if describe == nil {
		describe = w.describeOpen
	}
	w.line = kit.NewProgressLine(o.ErrOut, o.Clock, describe)
	defer w.line.Stop()
	namespace, opts := w.findScope()
	err := followVMs(ctx, o, namespace, opts, observer{onList: w.observeList, onEvent: w.observeEvent})
	if errors.Is(err, context.Canceled) {
		return err
	}
	for _, awaited := range w.listOpen() {
		w.endWait(awaited, err)
	}
	return nil
}

// findScope returns the namespace, or all namespaces, and the options of a watch of the open VMs.
func (w *Waiter) findScope() (namespace string, opts metav1.ListOptions) {
	first := true
	for _, awaited := range w.Open {
		if first {
			namespace, opts, first = awaited.VM.Namespace, selectName(awaited.VM.Name), false
			continue
		}
		opts = metav1.ListOptions{}
		if awaited.VM.Namespace != namespace {
			return metav1.NamespaceAll, opts
		}
	}
	return namespace, opts
}

func (w *Waiter) listOpen() []*AwaitedVM {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*AwaitedVM, 0, len(w.Open))
	for _, awaited := range w.Open {
		all = append(all, awaited)
	}
	return all
}

func (w *Waiter) observeList(vms []api.VirtualMachine) bool {
	present := make(map[types.UID]bool, len(vms))
	for i := range vms {
		present[vms[i].UID] = true
		w.observeVM(&vms[i])
	}
	for _, awaited := range w.listOpen() {
		if !present[awaited.VM.UID] {
			w.observeDeletion(awaited)
		}
	}
	return len(w.listOpen()) == 0
}

func (w *Waiter) observeEvent(kind watch.EventType, vm *api.VirtualMachine) bool {
	if kind != watch.Deleted {
		w.observeVM(vm)
	} else if awaited := w.findAwaited(vm.UID); awaited != nil {
		w.observeDeletion(awaited)
	}
	return len(w.listOpen()) == 0
}

func (w *Waiter) findAwaited(uid types.UID) *AwaitedVM {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Open[uid]
}

func (w *Waiter) observeVM(vm *api.VirtualMachine) {
	awaited := w.findAwaited(vm.UID)
	if awaited == nil {
		return
	}
	w.mu.Lock()
	awaited.VM = vm
	w.mu.Unlock()
	if w.Seen != nil {
		w.Seen(vm)
	}
	if awaited.UntilDeleted {
		return
	}
	if done, err := awaited.Reached(vm); done || err != nil {
		w.endWait(awaited, err)
	}
}

func (w *Waiter) observeDeletion(awaited *AwaitedVM) {
	if awaited.UntilDeleted {
		w.endWait(awaited, nil)
		return
	}
	w.endWait(awaited, ErrDeleted)
}

func (w *Waiter) endWait(awaited *AwaitedVM, err error) {
	w.mu.Lock()
	delete(w.Open, awaited.VM.UID)
	w.mu.Unlock()
	w.Ended(awaited, err)
}

// PrintAbove prints a line above the progress line. It may be called only during AwaitVMs.
func (w *Waiter) PrintAbove(out io.Writer, format string, args ...any) {
	w.line.PrintAbove(out, format, args...)
}

// describeOpen describes one of the open VMs, and how many there are, in one line.
func (w *Waiter) describeOpen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, awaited := range w.Open {
		text := fmt.Sprintf("waiting for %s: %s", awaited.VM.Name, ActivityText(awaited.VM))
		if n := len(w.Open); n > 1 {
			text = fmt.Sprintf("waiting for %d VMs, %s: %s", n, awaited.VM.Name, ActivityText(awaited.VM))
		}
		return text
	}
	return ""
}

// ActivityText describes the state of a VM in a few words.
func ActivityText(vm *api.VirtualMachine) string {
	text := StateCell(vm).Text
	if r := vm.Status.Reason; r != "" && r != text {
		text += ", " + r
	}
	if m := vm.Status.Message; m != "" {
		text += ": " + printable.Line(m)
	}
	return text
}
