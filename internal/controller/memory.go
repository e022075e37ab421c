// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/policy"
)

// stage is a stage of a creation or deletion that no status reports yet, and when a pass first saw it.
type stage struct {
	uid    types.UID
	reason string
	since  time.Time
}

// stages has the stage of each VirtualMachine that no status reports yet.
type stages struct{ facttimes.PerVM[stage] }

// foundSince returns since when passes have found the stage of next, while the status in the
// API still reports an earlier stage.
func (s *stages) foundSince(vm *api.VirtualMachine, next *api.VirtualMachineStatus, now time.Time) time.Time {
	key := facttimes.KeyOf(vm)
	if !isProgress(&vm.Status, next) || vm.Status.Reason == next.Reason {
		s.Forget(key)
		return now
	}
	if seen := s.Get(key); seen.uid == vm.UID && seen.reason == next.Reason {
		return seen.since
	}
	s.Set(key, stage{vm.UID, next.Reason, now})
	return now
}

// unreportedWork is the work of a pass that it could not report in the status, for example after a conflict.
type unreportedWork struct {
	// base is the object in the API. status is the status after the work.
	base   *api.VirtualMachine
	status *api.VirtualMachineStatus
	events []pendingEvent
}

// findUnreported returns what was done for the object but is not in its status yet. It
// returns nil if another process has written the status since.
func (r *Reconciler) findUnreported(vm *api.VirtualMachine) *unreportedWork {
	left := r.unreported.Get(facttimes.KeyOf(vm))
	if left == nil || left.base.UID != vm.UID || !equality.Semantic.DeepEqual(&left.base.Status, &vm.Status) {
		return nil
	}
	return left
}

// storeUnreported keeps what the pass did, unless the status reports it.
func (r *Reconciler) storeUnreported(known facts, decision policy.Decision) {
	p := pass{r, known, decision}
	if !p.unreported {
		r.unreported.Forget(facttimes.KeyOf(p.base))
		return
	}
	status := p.vm.Status.DeepCopy()
	if server := p.serverStatus(); server != nil && p.isObserved() {
		status.Server = server
	}
	r.unreported.Set(facttimes.KeyOf(p.base), &unreportedWork{p.base, status, p.allEvents()})
}

// forgetObject drops everything that is kept about an object that is gone or belongs to another driver.
func (r *Reconciler) forgetObject(key types.NamespacedName) {
	r.Client.Forget(key)
	r.unreported.Forget(key)
	r.stages.Forget(key)
	r.times.Forget(key)
	r.probes.Forget(key)
	r.files.Forget(key)
}
