// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// routineAfter is when a new leader begins to look at what seems to be in order.
// Looking at thousands of VMs takes all CPUs for a while, and what is undone
// should have them first.
const routineAfter = time.Second

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
	mu    sync.Mutex
	ranks map[types.NamespacedName]int
}

// set takes what an object says.
func (u *undone) set(vm *api.VirtualMachine) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ranks == nil {
		u.ranks = map[types.NamespacedName]int{}
	}
	u.ranks[keyOf(vm)] = rank(vm)
	if u.ranks[keyOf(vm)] == prioRoutine {
		delete(u.ranks, keyOf(vm))
	}
}

// raise takes what an engine says. If the leader has to do something about it,
// it writes the object, and set hears of it.
func (u *undone) raise(c inventory.Change) {
	if c.All || c.Routine {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ranks == nil {
		u.ranks = map[types.NamespacedName]int{}
	}
	u.ranks[c.VM] = max(u.ranks[c.VM], prioEngine)
}

func (u *undone) forget(key types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.ranks, key)
}

// take empties it.
func (u *undone) take() map[types.NamespacedName]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	ranks := u.ranks
	u.ranks = nil
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
	for key, priority := range r.undone.take() {
		add(q, key, priority)
	}
	select {
	case <-r.Clock.After(routineAfter):
		r.addAll(ctx, q)
	case <-ctx.Done():
	}
}
