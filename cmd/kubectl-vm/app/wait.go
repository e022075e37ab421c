// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// defaultWait is how long a wait lasts unless --timeout says otherwise.
const defaultWait = 10 * time.Minute

// Errors of a wait for one VM.
var (
	errDeletedMeanwhile = errors.New("it was deleted meanwhile")
	errStalled          = errors.New("only a new spec can help")
)

// goal reports whether a VM is as awaited. An error means that it will not become so.
type goal func(vm *api.VirtualMachine) (bool, error)

// whenReady awaits that a VM is as the spec of a generation, or a later one, says.
func whenReady(generation int64) goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		switch {
		case vm.DeletionTimestamp != nil:
			return false, errDeletedMeanwhile
		case vm.Status.ObservedGeneration < generation:
			return false, nil
		case isStalled(vm):
			return false, fmt.Errorf("%w: %s: %s", errStalled, vm.Status.Reason, printable.Line(vm.Status.Message))
		}
		return isReady(vm) && isRestartHandled(vm), nil
	}
}

// whenPowered awaits that a VM has the power state of a generation of its spec. Unlike
// whenReady it does not await fields that wait for a restart, or are refused.
func whenPowered(generation int64) goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		status := &vm.Status
		unready := status.Reason == api.ReasonChangePending || status.RefusedField != nil
		settled := status.ObservedGeneration >= generation && (status.Operation == nil || isOnlyCounting(vm)) && isRestartHandled(vm)
		if settled && unready && vm.DeletionTimestamp == nil && status.Phase == phaseOf(vm.Spec.Action) {
			return true, nil
		}
		return whenReady(generation)(vm)
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
	return want.IsZero() || have != nil && want.Truncate(time.Second).Equal(have.Time)
}

// awaited is a VM that is waited for.
type awaited struct {
	vm      *api.VirtualMachine // as last seen
	reached goal
	// gone is set if the VM is waited for to be deleted.
	gone bool
	// unchanged is set if that has been printed of the VM.
	unchanged bool
}

// waiter waits for VMs.
type waiter struct {
	mu   sync.Mutex // for describe, which the progress line calls
	open map[types.UID]*awaited
	// ended is called for each VM whose wait has ended.
	ended func(one *awaited, err error)
	// seen, if any, is called for each version of a VM.
	seen func(vm *api.VirtualMachine)
}

// awaitVMs waits until the wait for every VM has ended. What ends it before is an error of those
// that are left, unless it is the user's Ctrl-C, which is returned.
func awaitVMs(ctx context.Context, o *Options, w *waiter) error {
	if len(w.open) == 0 {
		return nil
	}
	namespace, opts := w.scope()
	err := followVMs(ctx, o, namespace, opts, observer{all: w.seeAll, one: w.seeOne})
	if errors.Is(err, context.Canceled) {
		return err
	}
	for _, one := range w.remaining() {
		w.endWait(one, err)
	}
	return nil
}

// scope returns what has to be watched.
func (w *waiter) scope() (namespace string, opts metav1.ListOptions) {
	first := true
	for _, one := range w.open {
		if first {
			namespace, opts, first = one.vm.Namespace, selectName(one.vm.Name), false
			continue
		}
		opts = metav1.ListOptions{}
		if one.vm.Namespace != namespace {
			return metav1.NamespaceAll, opts
		}
	}
	return namespace, opts
}

func (w *waiter) remaining() []*awaited {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*awaited, 0, len(w.open))
	for _, one := range w.open {
		all = append(all, one)
	}
	return all
}

func (w *waiter) seeAll(vms []api.VirtualMachine) bool {
	present := make(map[types.UID]bool, len(vms))
	for i := range vms {
		present[vms[i].UID] = true
		w.observeVM(&vms[i])
	}
	for _, one := range w.remaining() {
		if !present[one.vm.UID] {
			w.seeDeletion(one)
		}
	}
	return len(w.remaining()) == 0
}

func (w *waiter) seeOne(kind watch.EventType, vm *api.VirtualMachine) bool {
	if kind != watch.Deleted {
		w.observeVM(vm)
	} else if one := w.findAwaited(vm.UID); one != nil {
		w.seeDeletion(one)
	}
	return len(w.remaining()) == 0
}

func (w *waiter) findAwaited(uid types.UID) *awaited {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open[uid]
}

func (w *waiter) observeVM(vm *api.VirtualMachine) {
	one := w.findAwaited(vm.UID)
	if one == nil {
		return
	}
	w.mu.Lock()
	one.vm = vm
	w.mu.Unlock()
	if w.seen != nil {
		w.seen(vm)
	}
	if one.gone {
		return
	}
	if done, err := one.reached(vm); done || err != nil {
		w.endWait(one, err)
	}
}

func (w *waiter) seeDeletion(vm *awaited) {
	if vm.gone {
		w.endWait(vm, nil)
		return
	}
	w.endWait(vm, errDeletedMeanwhile)
}

func (w *waiter) endWait(vm *awaited, err error) {
	w.mu.Lock()
	delete(w.open, vm.vm.UID)
	w.mu.Unlock()
	w.ended(vm, err)
}

// describe returns what is waited for, in one line.
func (w *waiter) describe() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.open {
		text := fmt.Sprintf("waiting for %s: %s", one.vm.Name, activityOf(one.vm))
		if more := len(w.open) - 1; more > 0 {
			text = fmt.Sprintf("waiting for %d VMs, %s: %s", more+1, one.vm.Name, activityOf(one.vm))
		}
		return text
	}
	return ""
}

// activityOf returns what goes on with a VM, in a few words.
func activityOf(vm *api.VirtualMachine) string {
	text := stateOf(vm).text
	if r := vm.Status.Reason; r != "" && r != text {
		text += ", " + r
	}
	if m := vm.Status.Message; m != "" {
		text += ": " + printable.Line(m)
	}
	return text
}
