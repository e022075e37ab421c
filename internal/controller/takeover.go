// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strconv"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// routineAfter is the delay before a new leader reconciles VMs that need nothing.
// Reconciling thousands of VMs takes all CPUs for a while, and unfinished work
// comes first.
const routineAfter = time.Second

// PriorityOf returns the priority of a VirtualMachine, by what the object itself shows to
// be unfinished.
func PriorityOf(vm *api.VirtualMachine) int {
	switch {
	case vm.DeletionTimestamp != nil:
		return PriorityDeletion
	case vm.Status.ObservedGeneration != vm.Generation:
		return PriorityUser
	case vm.Status.Operation != nil:
		return PriorityEngine
	}
	return PriorityRoutine
}

// PriorityIndex is a cache index by rank. VMs that need nothing are not in it, so a new
// leader finds the unfinished ones among thousands without reading all.
const PriorityIndex = "rank"

func IndexPriority(object client.Object) []string {
	vm, ok := object.(*api.VirtualMachine)
	if !ok || PriorityOf(vm) == PriorityRoutine {
		return nil
	}
	return []string{strconv.Itoa(PriorityOf(vm))}
}

// isStandby reports whether this process does not lead yet.
func (r *Reconciler) isStandby() bool { return r.Epoch() == 0 }

// takeOver fills the queue once this process is elected: unfinished work at once,
// by rank, and the rest a little later. Until then nothing is enqueued. Nothing is
// missed, since the caches are complete by then.
func (r *Reconciler) takeOver(ctx context.Context, q Queue, elected <-chan struct{}) {
	select {
	case <-elected:
	case <-ctx.Done():
		return
	}
	r.enqueueUnfinished(ctx, q)
	select {
	case <-r.Clock.After(routineAfter):
		r.enqueueAll(ctx, q)
	case <-ctx.Done():
	}
}

// enqueueUnfinished enqueues unfinished work, what users wait for first. Among thousands,
// the last is enqueued many milliseconds later.
func (r *Reconciler) enqueueUnfinished(ctx context.Context, q Queue) {
	for _, priority := range []int{PriorityDeletion, PriorityUser, PriorityEngine} {
		for _, vm := range r.listCached(ctx, client.MatchingFields{PriorityIndex: strconv.Itoa(priority)}) {
			Add(q, keyOf(vm), priority)
		}
	}
	ctrl.Log.V(1).Info("Took over", "driver", r.Driver, "undone", q.Len())
}
