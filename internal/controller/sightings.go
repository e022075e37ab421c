// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// Instants has the instants that waits count from, by this process's clock. The zero
// time means that the fact does not hold.
//
// Times in objects and on servers were written by other clocks: the API server's,
// the engine's, another replica's. They are displayed and compared for equality,
// but no wait counts from them, since each may be an hour off. After a failover a
// wait counts from when the new leader first saw its cause, so it at most doubles.
type Instants struct {
	// Deletion is when the object was first seen being deleted.
	Deletion time.Time
	// Operation is when status.operation was first seen, and failure when its last
	// failure was.
	Operation, Failure time.Time
	// Run is when the server's run was first seen running, and exit when it was
	// first seen over.
	Run, Exit time.Time
}

// factTimes records the instants of each VirtualMachine that waits for something.
// Nothing is kept for one that does not wait.
type factTimes struct {
	mu   sync.Mutex
	byVM map[types.NamespacedName][]factTime
}

// factTime is when a fact was first seen. The fact is identified by its kind and by
// a text that changes with the fact.
type factTime struct {
	kind factKind
	value   string
	at   time.Time
	// onlyKnown leaves the fact out unless it was seen before.
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
func (s *factTimes) update(vm *api.VirtualMachine, seen inventory.Observation, now time.Time) Instants {
	facts := factsOf(vm, seen)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byVM[keyOf(vm)]
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
	if next != nil && s.byVM == nil {
		s.byVM = map[types.NamespacedName][]factTime{}
	}
	if next != nil {
		s.byVM[keyOf(vm)] = next
	} else if before != nil {
		delete(s.byVM, keyOf(vm))
	}
	return instantsOf(next)
}

func (s *factTimes) forgetObject(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byVM, key)
}

func instantsOf(facts []factTime) Instants {
	var s Instants
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
func factsOf(vm *api.VirtualMachine, seen inventory.Observation) []factTime {
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
	if op.Failure != api.FailureExited || seen.Answer != inventory.Present {
		return facts
	}
	over := seen.Server.State == driver.StateStopped
	if over {
		add(factExit, seen.Server.Run)
	}
	if over || IsRunning(seen) {
		add(factRun, seen.Server.Run)
		facts[len(facts)-1].onlyKnown = over
	}
	return facts
}
