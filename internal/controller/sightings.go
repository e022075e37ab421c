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

// since has the instants that waits count from, by this process's clock. The zero
// time means that the fact does not hold.
//
// Times in objects and on servers were written by other clocks: the API server's,
// the engine's, another replica's. They are displayed and compared for equality,
// but no wait counts from them, since each may be an hour off. After a failover a
// wait counts from when the new leader first saw its cause, so it at most doubles.
type since struct {
	// deletion is when the object was first seen being deleted.
	deletion time.Time
	// operation is when status.operation was first seen, and failure when its last
	// failure was.
	operation, failure time.Time
	// run is when the server's run was first seen running, and exit when it was
	// first seen over.
	run, exit time.Time
}

// sightings records the instants of each VirtualMachine that waits for something.
// Nothing is kept for one that does not wait.
type sightings struct {
	mu   sync.Mutex
	byVM map[types.NamespacedName][]sighting
}

// sighting is when a fact was first seen. The fact is identified by its kind and by
// a text that changes with the fact.
type sighting struct {
	kind factKind
	of   string
	at   time.Time
	// known leaves the fact out unless it was seen before.
	known bool
}

type factKind int

const (
	factDeletion factKind = iota
	factOperation
	factFailure
	factRun
	factExit
)

// observe returns since when the facts hold. It records new facts as of now, and
// drops those that no longer hold.
func (s *sightings) observe(vm *api.VirtualMachine, seen inventory.Observation, now time.Time) since {
	facts := factsOf(vm, seen)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byVM[keyOf(vm)]
	var next []sighting
	for _, f := range facts {
		n := slices.IndexFunc(before, func(b sighting) bool { return b.kind == f.kind && b.of == f.of })
		switch {
		case n >= 0:
			f.at = before[n].at
		case f.known:
			continue
		default:
			f.at = now
		}
		next = append(next, f)
	}
	if next != nil && s.byVM == nil {
		s.byVM = map[types.NamespacedName][]sighting{}
	}
	if next != nil {
		s.byVM[keyOf(vm)] = next
	} else if before != nil {
		delete(s.byVM, keyOf(vm))
	}
	return sinceOf(next)
}

func (s *sightings) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byVM, key)
}

func sinceOf(facts []sighting) since {
	var s since
	at := map[factKind]*time.Time{
		factDeletion: &s.deletion, factOperation: &s.operation, factFailure: &s.failure,
		factRun: &s.run, factExit: &s.exit,
	}
	for _, f := range facts {
		*at[f.kind] = f.at
	}
	return s
}

// factsOf returns the facts that a wait may count from.
func factsOf(vm *api.VirtualMachine, seen inventory.Observation) []sighting {
	var facts []sighting
	add := func(kind factKind, of ...string) {
		facts = append(facts, sighting{kind: kind, of: strings.Join(append(of, string(vm.UID)), "/")})
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
	if over || isUp(seen) {
		add(factRun, seen.Server.Run)
		facts[len(facts)-1].known = over
	}
	return facts
}
