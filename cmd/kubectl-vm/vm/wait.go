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
	ErrDeleted = errors.New("it was deleted meanwhile")
	ErrStalled = errors.New("only a new spec can help")
)

// Goal reports whether a VM is as awaited. An error means that it will not become so.
type Goal func(vm *api.VirtualMachine) (bool, error)

// WhenReady awaits that a VM is as the spec of a generation, or a later one, says.
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

// WhenPowered awaits that a VM has the power state of a generation of its spec. Unlike
// WhenReady it does not await fields that wait for a restart, or are refused.
func WhenPowered(generation int64) Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		status := &vm.Status
		unready := status.Reason == api.ReasonChangePending || status.RefusedField != nil
		settled := status.ObservedGeneration >= generation && (status.Operation == nil || IsOnlyCounting(vm)) && isRestartHandled(vm)
		if settled && unready && vm.DeletionTimestamp == nil && status.Phase == phaseOf(vm.Spec.Action) {
			return true, nil
		}
		return WhenReady(generation)(vm)
	}
}

// phaseOf returns the phase of a VM that has its power state.
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

// isRestartHandled reports whether no requested restart is to come. A status has whole seconds,
// and a spec what its user wrote.
func isRestartHandled(vm *api.VirtualMachine) bool {
	want, have := vm.Spec.RestartedAt, vm.Status.RestartedAt
	return want.IsZero() || (have != nil && want.Truncate(time.Second).Equal(have.Time))
}

// AwaitedVM is a VM that is waited for.
type AwaitedVM struct {
	VM *api.VirtualMachine // as last seen
	// Reached ends the wait, unless Gone is set.
	Reached Goal
	// Gone is set if the VM is waited for to be deleted.
	Gone bool
	// Unchanged is set if the user was told already that the VM needed no change.
	Unchanged bool
}

// Waiter waits for VMs, and shows on a line of progress what goes on.
type Waiter struct {
	mu   sync.Mutex // guards Open, which the line of progress reads
	Open map[types.UID]*AwaitedVM
	// Ended is called for each VM whose wait has ended.
	Ended func(one *AwaitedVM, err error)
	// Seen, if any, is called for each version of a VM.
	Seen func(vm *api.VirtualMachine)
	// Describe, if any, returns the line of progress.
	Describe func() string

	line *kit.ProgressLine
}

// AwaitVM waits for one VM, and returns its last version and the error that ended the wait. The
// user's Ctrl-C is such an error, too.
func AwaitVM(ctx context.Context, o *kit.Options, timeout time.Duration, w *Waiter, vm *AwaitedVM) (last *api.VirtualMachine, err error) {
	w.Open = map[types.UID]*AwaitedVM{vm.VM.UID: vm}
	w.Ended = func(_ *AwaitedVM, failed error) { err = failed }
	stopped := AwaitVMs(ctx, o, timeout, w)
	return vm.VM, cmp.Or(stopped, err)
}

// AwaitVMs waits until the wait for every VM has ended. What ends it before, such as the timeout, of
// which 0 means none, is an error of those that are left, unless it is the user's Ctrl-C, which is returned.
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
	for _, one := range w.listOpen() {
		w.endWait(one, err)
	}
	return nil
}

// findScope returns what has to be watched.
func (w *Waiter) findScope() (namespace string, opts metav1.ListOptions) {
	first := true
	for _, one := range w.Open {
		if first {
			namespace, opts, first = one.VM.Namespace, selectName(one.VM.Name), false
			continue
		}
		opts = metav1.ListOptions{}
		if one.VM.Namespace != namespace {
			return metav1.NamespaceAll, opts
		}
	}
	return namespace, opts
}

func (w *Waiter) listOpen() []*AwaitedVM {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*AwaitedVM, 0, len(w.Open))
	for _, one := range w.Open {
		all = append(all, one)
	}
	return all
}

func (w *Waiter) observeList(vms []api.VirtualMachine) bool {
	present := make(map[types.UID]bool, len(vms))
	for i := range vms {
		present[vms[i].UID] = true
		w.observeVM(&vms[i])
	}
	for _, one := range w.listOpen() {
		if !present[one.VM.UID] {
			w.observeDeletion(one)
		}
	}
	return len(w.listOpen()) == 0
}

func (w *Waiter) observeEvent(kind watch.EventType, vm *api.VirtualMachine) bool {
	if kind != watch.Deleted {
		w.observeVM(vm)
	} else if one := w.findAwaited(vm.UID); one != nil {
		w.observeDeletion(one)
	}
	return len(w.listOpen()) == 0
}

func (w *Waiter) findAwaited(uid types.UID) *AwaitedVM {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Open[uid]
}

func (w *Waiter) observeVM(vm *api.VirtualMachine) {
	one := w.findAwaited(vm.UID)
	if one == nil {
		return
	}
	w.mu.Lock()
	one.VM = vm
	w.mu.Unlock()
	if w.Seen != nil {
		w.Seen(vm)
	}
	if one.Gone {
		return
	}
	if done, err := one.Reached(vm); done || err != nil {
		w.endWait(one, err)
	}
}

func (w *Waiter) observeDeletion(vm *AwaitedVM) {
	if vm.Gone {
		w.endWait(vm, nil)
		return
	}
	w.endWait(vm, ErrDeleted)
}

func (w *Waiter) endWait(vm *AwaitedVM, err error) {
	w.mu.Lock()
	delete(w.Open, vm.VM.UID)
	w.mu.Unlock()
	w.Ended(vm, err)
}

// PrintAbove prints a line above the line of progress, while the wait lasts.
func (w *Waiter) PrintAbove(out io.Writer, format string, args ...any) {
	w.line.PrintAbove(out, format, args...)
}

// describeOpen returns what is waited for, in one line.
func (w *Waiter) describeOpen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.Open {
		text := fmt.Sprintf("waiting for %s: %s", one.VM.Name, ActivityText(one.VM))
		if more := len(w.Open) - 1; more > 0 {
			text = fmt.Sprintf("waiting for %d VMs, %s: %s", more+1, one.VM.Name, ActivityText(one.VM))
		}
		return text
	}
	return ""
}

// ActivityText returns what goes on with a VM, in a few words.
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
