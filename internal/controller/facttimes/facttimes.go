// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package facttimes keeps when this process first observed the facts from which the waits of a VirtualMachine count.
//
// Start with FactTimes. PerVM is also used for other values of VirtualMachines.
package facttimes

import (
	"cmp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// PerVM has values of VirtualMachines. It relies on there being at most one pass at a time for a VirtualMachine.
type PerVM[T any] struct{ values sync.Map }

// Get returns the value of a VirtualMachine, or the zero value.
func (p *PerVM[T]) Get(key types.NamespacedName) (value T) {
	if v, ok := p.values.Load(key); ok {
		value, _ = v.(T)
	}
	return value
}

// Set keeps the value of a VirtualMachine.
func (p *PerVM[T]) Set(key types.NamespacedName, value T) { p.values.Store(key, value) }

// Forget drops the value of a VirtualMachine.
func (p *PerVM[T]) Forget(key types.NamespacedName) { p.values.Delete(key) }

// FactTimes records when each fact from which a wait counts was first observed, and nothing for a
// VirtualMachine that does not wait. The key of a fact is a text that changes when the fact does.
type FactTimes struct {
	PerVM[map[string]time.Time]
}

// Update returns since when the facts hold. It records new facts as of now, and drops facts
// that no longer hold.
func (s *FactTimes) Update(vm *api.VirtualMachine, observed inventory.Observation, now time.Time) (since policy.Instants) {
	before, next := s.Get(KeyOf(vm)), map[string]time.Time{}
	record := func(instant *time.Time, at time.Time, parts ...string) {
		fact := strings.Join(append(parts, string(vm.UID)), "/")
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
		case !IsCounting(op) || observed.Answer == inventory.Unknown:
		case hasRunEnded(observed):
			record(&since.Exit, now, "exit", run)
			record(&since.Run, time.Time{}, "run", run) // keeps the time of a run that was observed
		case observed.IsRunning() || observed.Server.State == driver.StatePaused:
			record(&since.Run, now, "run", run)
		}
	}
	s.Forget(KeyOf(vm))
	if len(next) > 0 {
		s.Set(KeyOf(vm), next)
	}
	return since
}

// hasRunEnded reports whether the last run has ended.
func hasRunEnded(observed inventory.Observation) bool {
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

// IsCounting reports whether an operation counts starts in a row that have not led to a stable run yet.
func IsCounting(op *api.Operation) bool {
	return op != nil && policy.Operation{Type: op.Type, Attempts: op.Attempts}.IsCounting()
}

// KeyOf returns the namespace and name of a VirtualMachine.
func KeyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }
