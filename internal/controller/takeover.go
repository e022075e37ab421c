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

// routineAfter is when a new leader begins to look at what seems to be in order.
// Looking at thousands of VMs takes all CPUs for a while, and what is undone
// should have them first.
const routineAfter = time.Second

// rank is the priority of a VirtualMachine by what it says itself that is still to
// be done for it.
func rank(vm *api.VirtualMachine) int {
	switch {
	case vm.DeletionTimestamp != nil:
		return prioDeletion
	case vm.Status.ObservedGeneration != vm.Generation:
		return prioUser
	case vm.Status.Operation != nil:
		return prioEngine
	}
	return prioRoutine
}

// rankIndex is an index of the cache by rank. What is in order is not in it, so that
// a new leader finds among thousands what is undone without looking at all.
const rankIndex = "rank"

func indexRank(object client.Object) []string {
	vm, ok := object.(*api.VirtualMachine)
	if !ok || rank(vm) == prioRoutine {
		return nil
	}
	return []string{strconv.Itoa(rank(vm))}
}

// isStandby tells whether this process does not lead yet.
func (r *Reconciler) isStandby() bool { return r.Epoch() == 0 }

// takeOver fills the queue once this process is elected: what is undone at once, by
// rank, and the rest a little later. Until then nothing is queued. Nothing is missed:
// the caches have all of it by then.
func (r *Reconciler) takeOver(ctx context.Context, q queue, elected <-chan struct{}) {
	select {
	case <-elected:
	case <-ctx.Done():
		return
	}
	r.addUndone(ctx, q)
	select {
	case <-r.Clock.After(routineAfter):
		r.addAll(ctx, q)
	case <-ctx.Done():
	}
}

// addUndone puts what is undone into the queue, what users wait for first: of
// thousands, the last is put in many milliseconds later.
func (r *Reconciler) addUndone(ctx context.Context, q queue) {
	for _, priority := range []int{prioDeletion, prioUser, prioEngine} {
		for _, vm := range r.cached(ctx, client.MatchingFields{rankIndex: strconv.Itoa(priority)}) {
			addToQueue(q, keyOf(vm), priority)
		}
	}
	ctrl.Log.V(1).Info("Took over", "driver", r.Driver, "undone", q.Len())
}
