// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
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

// factTimes records the instants of each VirtualMachine that waits for something,
// and nothing for one that does not wait.
type factTimes struct{ perVM[[]factTime] }

// factTime is when a fact was first observed. The fact is identified by its kind and
// by a text that changes with the fact.
type factTime struct {
	kind  factKind
	value string
	at    time.Time
	// onlyKnown leaves the fact out unless it was observed before.
	onlyKnown bool
}

type factKind int

const (
	factDeletion factKind = iota
	factOperation
	factFailure
	factRun
	factExit
)

// update returns since when the facts hold. It records new facts as of now, and
// drops those that no longer hold.
func (s *factTimes) update(vm *api.VirtualMachine, observed inventory.Observation, now time.Time) policy.Instants {
	facts, before := factsOf(vm, observed), s.get(keyOf(vm))
	var next []factTime
	for _, f := range facts {
		n := slices.IndexFunc(before, func(b factTime) bool { return b.kind == f.kind && b.value == f.value })
		switch {
		case n >= 0:
			f.at = before[n].at
		case f.onlyKnown:
			continue
		default:
			f.at = now
		}
		next = append(next, f)
	}
	if next == nil {
		s.forget(keyOf(vm))
	} else {
		s.set(keyOf(vm), next)
	}
	return instantsOf(next)
}

func instantsOf(facts []factTime) policy.Instants {
	var s policy.Instants
	at := map[factKind]*time.Time{
		factDeletion: &s.Deletion, factOperation: &s.Operation, factFailure: &s.Failure,
		factRun: &s.Run, factExit: &s.Exit,
	}
	for _, f := range facts {
		*at[f.kind] = f.at
	}
	return s
}

// factsOf returns the facts that a wait may count from.
func factsOf(vm *api.VirtualMachine, observed inventory.Observation) []factTime {
	var facts []factTime
	add := func(kind factKind, of ...string) {
		facts = append(facts, factTime{kind: kind, value: strings.Join(append(of, string(vm.UID)), "/")})
	}
	if vm.DeletionTimestamp != nil {
		add(factDeletion)
	}
	op := vm.Status.Operation
	if op == nil {
		return facts
	}
	began := string(op.Type) + "/" + strconv.FormatInt(op.StartedAt.UnixMicro(), 10)
	add(factOperation, began)
	if op.Attempts > 0 {
		add(factFailure, began, strconv.Itoa(int(op.Attempts)))
	}
	if op.Failure != api.FailureExited || observed.Answer != inventory.Present {
		return facts
	}
	isOver := observed.Server.State == driver.StateStopped || observed.Server.State == driver.StateStopping && observed.Server.Exit != nil
	if isOver {
		add(factExit, observed.Server.Run)
	}
	if isOver || observed.IsRunning() {
		add(factRun, observed.Server.Run)
		facts[len(facts)-1].onlyKnown = isOver
	}
	return facts
}

// stage is a stage of a creation or deletion that is not written yet, and when it was first seen.
type stage struct {
	uid    types.UID
	reason string
	since  time.Time
}

// stages has the stages that are not written yet.
type stages struct{ perVM[stage] }

// since returns since when passes have found the stage that a status would have now,
// while the API has another one.
func (s *stages) since(vm *api.VirtualMachine, next *api.VirtualMachineStatus, now time.Time) time.Time {
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

// unreportedWork is what a pass did but could not write, for example after a conflict.
type unreportedWork struct {
	// base is the object in the API. status is the one that follows from what was done.
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
