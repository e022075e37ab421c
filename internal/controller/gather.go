// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// get returns the VirtualMachine, or nil if there is none. The cache may lag behind
// this process's last write, so get returns the newer of the two.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*api.VirtualMachine, error) {
	vm := &api.VirtualMachine{}
	if err := r.Client.Get(ctx, key, vm); err != nil {
		r.forget(key)
		return nil, client.IgnoreNotFound(err)
	}
	return r.recent.newer(key, vm), nil
}

// forget drops all state about an object that is gone or belongs to another driver.
func (r *Reconciler) forget(key types.NamespacedName) {
	r.recent.forget(key)
	r.probes.forget(key)
	r.sightings.forget(key)
}

// gather combines the VirtualMachine and the inventory's answer.
func (r *Reconciler) gather(vm *api.VirtualMachine) *reconciliation {
	p := &reconciliation{r: r, base: vm, vm: vm.DeepCopy(), seen: r.observeServer(vm)}
	if left := r.recent.unreported(vm); left != nil {
		p.vm.Status, p.notes, p.acted = *left.status.DeepCopy(), left.notes, true
	} else {
		importStatus(&p.vm.Status, p.seen)
		p.noteCrash()
	}
	if p.vm.Status.Server != nil {
		p.shown = p.vm.Status.Server.Generation
	}
	if p.seen.Server.State == driver.StateStopped && isStoppedByDrover(Input{VM: p.vm, Seen: p.seen}) {
		p.stoppedRun = p.seen.Server.Run
	}
	return p
}

// refreshObservation updates the observed server by asking the engine. If the
// engine does not answer, the server is unknown afterwards.
func (p *reconciliation) refreshObservation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	seen, err := p.r.Inventory.Look(ctx, p.vm.UID)
	p.seen, p.fresh = seen, err == nil
	return err
}

// recent has this process's last write of each object until the cache has it, and
// what was done for an object since.
type recent struct {
	mu      sync.Mutex
	written map[types.NamespacedName]*api.VirtualMachine
	undone  map[types.NamespacedName]unreported
}

// unreported is what a pass did but could not write, for example after a conflict.
type unreported struct {
	uid types.UID
	// base is the status in the API. status is the one that follows from what was
	// done.
	base, status *api.VirtualMachineStatus
	notes        []note
}

// unreported returns what was done for the object but is not in its status yet. It
// is nil if the status was written by another process since.
func (c *recent) unreported(vm *api.VirtualMachine) *unreported {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, ok := c.undone[keyOf(vm)]
	if !ok || left.uid != vm.UID || !equality.Semantic.DeepEqual(left.base, &vm.Status) {
		return nil
	}
	return &left
}

// keepUnreported records what the pass did, unless that was written.
func (p *reconciliation) keepUnreported() {
	c := &p.r.recent
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.acted || p.reported {
		delete(c.undone, keyOf(p.base))
		return
	}
	status := p.vm.Status.DeepCopy()
	if server := p.serverStatus(); server != nil {
		status.Server = server
	}
	if c.undone == nil {
		c.undone = map[types.NamespacedName]unreported{}
	}
	c.undone[keyOf(p.base)] = unreported{p.base.UID, &p.base.Status, status, p.events()}
}

func (c *recent) newer(key types.NamespacedName, cached *api.VirtualMachine) *api.VirtualMachine {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.written[key]
	if own == nil {
		return cached
	}
	if own.UID == cached.UID && isFinalized(own) {
		return own // the object goes with this write, which has no version of its own
	}
	order, err := resourceversion.CompareResourceVersion(own.ResourceVersion, cached.ResourceVersion)
	if err != nil || order <= 0 || own.UID != cached.UID {
		delete(c.written, key)
		return cached
	}
	return own.DeepCopy()
}

func (c *recent) remember(vm *api.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written = map[types.NamespacedName]*api.VirtualMachine{}
	}
	c.written[client.ObjectKeyFromObject(vm)] = vm
}

// caughtUp drops what the cache has by now.
func (c *recent) caughtUp(cached *api.VirtualMachine) {
	_ = c.newer(client.ObjectKeyFromObject(cached), cached)
}

func (c *recent) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
	delete(c.undone, key)
}

// isUp reports whether a server's guest is running.
func isUp(seen inventory.Observation) bool {
	return seen.Answer == inventory.Present && seen.Server.State == driver.StateRunning
}
