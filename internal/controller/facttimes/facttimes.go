// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package facttimes keeps since when this process has observed the facts that a VirtualMachine waits for.
//
// Start with FactTimes. PerVM keeps other values by VirtualMachine.
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

// PerVM has a value for each of some VirtualMachines. One pass at a time is about each of them.
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

// FactTimes records when each fact that a VirtualMachine waits for was first observed, and nothing
// for one that does not wait. A fact is a text that changes with it.
type FactTimes struct {
	PerVM[map[string]time.Time]
}

// Update returns since when the facts hold. It records new facts as of now, and
// drops those that no longer hold.
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
		case isOver(observed):
			record(&since.Exit, now, "exit", run)
			record(&since.Run, time.Time{}, "run", run) // only if it was observed before
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

// IsCounting reports whether an operation counts starts that have yet to lead to a stable run.
func IsCounting(op *api.Operation) bool {
	return op != nil && policy.Operation{Type: op.Type, Attempts: op.Attempts}.IsCounting()
}

// KeyOf returns the namespace and name of a VirtualMachine.
func KeyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }
