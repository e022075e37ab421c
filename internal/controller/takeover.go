// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// routineAfter is when a new leader begins to look at what seems to be in order.
// Looking at thousands of VMs takes all CPUs for a while, and what is undone
// should have them first.
const routineAfter = time.Second

// seenToWithin is when a leader has certainly seen to what an engine told of.
const seenToWithin = time.Minute

// rank is the priority of a VirtualMachine by what it says itself.
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

// undone is what a standby's leader has not seen to yet, by priority. A queue
// could not keep it: what is done would have to leave it again.
type undone struct {
	mu     sync.Mutex
	ranks  map[types.NamespacedName]int       // by what objects say
	raised map[types.NamespacedName]time.Time // when an engine told of a change
}

// set takes what an object says.
func (u *undone) set(vm *api.VirtualMachine) {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := keyOf(vm)
	delete(u.raised, key)
	delete(u.ranks, key)
	if rank := rank(vm); rank != prioRoutine {
		put(&u.ranks, key, rank)
	}
}

// raise takes what an engine says. If the leader has to do something about it,
// it writes the object, and set hears of it; else it stays, to become old.
func (u *undone) raise(c inventory.Change, now time.Time) {
	if c.All || c.Routine {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	put(&u.raised, c.VM, now)
}

func put[V any](m *map[types.NamespacedName]V, key types.NamespacedName, value V) {
	if *m == nil {
		*m = map[types.NamespacedName]V{}
	}
	(*m)[key] = value
}

func (u *undone) forget(key types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.ranks, key)
	delete(u.raised, key)
}

// take empties it.
func (u *undone) take(now time.Time) map[types.NamespacedName]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, at := range u.raised {
		if now.Sub(at) <= seenToWithin {
			put(&u.ranks, key, max(u.ranks[key], prioEngine))
		}
	}
	ranks := u.ranks
	u.ranks, u.raised = nil, nil
	return ranks
}

// standsBy tells whether this process does not lead yet.
func (r *Reconciler) standsBy() bool { return r.Epoch() == 0 }

// takeOver fills the queue once this process is elected: what is undone at once,
// the rest a little later. Nothing is missed: the cache has all of it by then.
func (r *Reconciler) takeOver(ctx context.Context, q queue, elected <-chan struct{}) {
	select {
	case <-elected:
	case <-ctx.Done():
		return
	}
	r.addUndone(q)
	select {
	case <-r.Clock.After(routineAfter):
		r.addAll(ctx, q)
	case <-ctx.Done():
	}
}

// addUndone puts what is undone into the queue, what users wait for first: of
// thousands, the last is put in many milliseconds later.
func (r *Reconciler) addUndone(q queue) {
	ranks := r.undone.take(r.Clock.Now())
	for _, priority := range []int{prioDeletion, prioUser, prioEngine} {
		for key, rank := range ranks {
			if rank == priority {
				add(q, key, rank)
			}
		}
	}
	ctrl.Log.V(1).Info("Took over", "driver", r.Driver, "undone", len(ranks))
}
