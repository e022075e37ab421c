// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// perVM has a value for each of some VirtualMachines. One pass at a time is about each of them.
type perVM[T any] struct{ values sync.Map }

// get returns the value of a VirtualMachine, or the zero value.
func (p *perVM[T]) get(key types.NamespacedName) (value T) {
	if v, ok := p.values.Load(key); ok {
		value, _ = v.(T)
	}
	return value
}

func (p *perVM[T]) set(key types.NamespacedName, value T) { p.values.Store(key, value) }

func (p *perVM[T]) forget(key types.NamespacedName) { p.values.Delete(key) }

// factTimes records when each fact that a VirtualMachine waits for was first observed, and nothing
// for one that does not wait. A fact is a text that changes with it.
type factTimes struct{ perVM[map[string]time.Time] }

// updateTimes returns since when the facts hold. It records new facts as of now, and
// drops those that no longer hold.
func (s *factTimes) updateTimes(vm *api.VirtualMachine, observed inventory.Observation, now time.Time) (since policy.Instants) {
	before, next := s.get(keyOf(vm)), map[string]time.Time{}
	record := func(instant *time.Time, at time.Time, of ...string) {
		fact := strings.Join(append(of, string(vm.UID)), "/")
		if known, ok := before[fact]; ok {
			at = known
		}
		if !at.IsZero() {
			*instant, next[fact] = at, at
		}
	}
	if vm.DeletionTimestamp != nil {
		record(&since.Deletion, now, "deletion")
	}
	if policy.IsCleanupDue(translate.Observed(&observed)) {
		record(&since.Cleanup, now, "cleanup", observed.Server.ID, observed.Server.Run)
	}
	if op := vm.Status.Operation; op != nil {
		began := string(op.Type) + "/" + strconv.FormatInt(op.StartedAt.UnixMicro(), 10)
		record(&since.Operation, now, "operation", began)
		if op.Attempts > 0 {
			record(&since.Failure, now, "failure", began, strconv.Itoa(int(op.Attempts)))
		}
		run := cmp.Or(observed.Server.Run, op.Run)
		switch {
		case !isCounting(op) || observed.Answer == inventory.Unknown:
		case isOver(observed):
			record(&since.Exit, now, "exit", run)
			record(&since.Run, time.Time{}, "run", run) // only if it was observed before
		case observed.IsRunning() || observed.Server.State == driver.StatePaused:
			record(&since.Run, now, "run", run)
		}
	}
	s.forget(keyOf(vm))
	if len(next) > 0 {
		s.set(keyOf(vm), next)
	}
	return since
}

// isOver reports whether the last run has ended.
func isOver(observed inventory.Observation) bool {
	if observed.Answer == inventory.Gone {
		return true
	}
	switch observed.Server.State {
	case driver.StateRemoving, driver.StateStopped:
		return true
	case driver.StateStopping:
		return observed.Server.Exit != nil
	case driver.StatePending, driver.StateStarting, driver.StateRunning, driver.StatePaused, driver.StateRestarting, driver.StateUnknown:
	}
	return false
}

// stage is a stage of a creation or deletion that is not written yet, and when it was first seen.
type stage struct {
	uid    types.UID
	reason string
	since  time.Time
}

// stages has the stages that are not written yet.
type stages struct{ perVM[stage] }

// foundSince returns when passes first found the stage that a status would have now,
// while the API still has another one.
func (s *stages) foundSince(vm *api.VirtualMachine, next *api.VirtualMachineStatus, now time.Time) time.Time {
	key := keyOf(vm)
	if !isProgress(&vm.Status, next) || vm.Status.Reason == next.Reason {
		s.forget(key)
		return now
	}
	if seen := s.get(key); seen.uid == vm.UID && seen.reason == next.Reason {
		return seen.since
	}
	s.set(key, stage{vm.UID, next.Reason, now})
	return now
}

// unreportedWork is the work that a pass did but could not write, for example after a conflict.
type unreportedWork struct {
	// base is the object in the API. status is the status after the work.
	base   *api.VirtualMachine
	status *api.VirtualMachineStatus
	events []pendingEvent
}

// findUnreported returns what was done for the object but is not in its status yet.
// It is nil if the status was written by another process since.
func (r *Reconciler) findUnreported(vm *api.VirtualMachine) *unreportedWork {
	left := r.unreported.get(keyOf(vm))
	if left == nil || left.base.UID != vm.UID || !equality.Semantic.DeepEqual(&left.base.Status, &vm.Status) {
		return nil
	}
	return left
}

// storeUnreported records what the pass did, unless that was written.
func (r *Reconciler) storeUnreported(known facts, decision policy.Decision) {
	p := pass{r, known, decision}
	if !p.unreported {
		r.unreported.forget(keyOf(p.base))
		return
	}
	status := p.vm.Status.DeepCopy()
	if server := p.serverStatus(); server != nil && p.isObserved() {
		status.Server = server
	}
	r.unreported.set(keyOf(p.base), &unreportedWork{p.base, status, p.allEvents()})
}

// forgetObject drops all state about an object that is gone or belongs to another
// driver.
func (r *Reconciler) forgetObject(key types.NamespacedName) {
	r.Client.Forget(key)
	r.unreported.forget(key)
	r.stages.forget(key)
	r.times.forget(key)
	r.probes.Forget(key)
}

// keyOf returns the namespace and name of a VirtualMachine.
func keyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }
