// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// get returns the VirtualMachine, or nil if there is none. The cache may lag
// behind our own last write, so the newer of the two counts.
func (r *Reconciler) get(ctx context.Context, key types.NamespacedName) (*api.VirtualMachine, error) {
	vm := &api.VirtualMachine{}
	if err := r.Client.Get(ctx, key, vm); err != nil {
		r.recent.forget(key)
		r.probes.forget(key)
		return nil, client.IgnoreNotFound(err)
	}
	return r.recent.newer(key, vm), nil
}

// gather puts the VirtualMachine and the inventory's answer side by side.
func (r *Reconciler) gather(vm *api.VirtualMachine) *pass {
	p := &pass{r: r, base: vm, vm: vm.DeepCopy()}
	boundTimes(&p.vm.Status, r.Clock.Now())
	if vm.Status.Server != nil {
		p.shown = vm.Status.Server.Generation
	}
	if r.Inventory != nil {
		p.seen = r.Inventory.Get(vm.UID)
	}
	return p
}

// boundTimes takes times that another host's clock has put into the future for
// what they can be at the most, so that nobody waits for that clock.
func boundTimes(status *api.VirtualMachineStatus, now time.Time) {
	op := status.Operation
	if op == nil {
		return
	}
	if op.StartedAt.After(now) {
		op.StartedAt = metav1.NewMicroTime(now)
	}
	latest := now.Add(backoff(op.Attempts, status.Reason == api.ReasonExhausted))
	if op.NextRetryTime != nil && op.NextRetryTime.After(latest) {
		next := metav1.NewMicroTime(latest)
		op.NextRetryTime = &next
	}
}

// look renews what is known of the server by asking the engine. An engine that
// does not answer at all is unknown afterwards.
func (p *pass) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	seen, err := p.r.Inventory.Look(ctx, p.vm.UID)
	p.seen, p.fresh = seen, err == nil
	return err
}

// recent remembers our own last write of each object until the cache has it, and
// which objects the API itself has shown.
type recent struct {
	mu      sync.Mutex
	written map[types.NamespacedName]*api.VirtualMachine
	shown   map[types.NamespacedName]types.UID
}

// saw takes note that the API has shown the object.
func (c *recent) saw(vm *api.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shown == nil {
		c.shown = map[types.NamespacedName]types.UID{}
	}
	c.shown[client.ObjectKeyFromObject(vm)] = vm.UID
}

// seenSince tells whether the object was seen since a lead of that epoch began:
// it was written later, or the API has shown it. A process has one lead.
func (c *recent) seenSince(vm *api.VirtualMachine, epoch uint64) bool {
	order, err := resourceversion.CompareResourceVersion(vm.ResourceVersion, strconv.FormatUint(epoch, 10))
	if err == nil && order >= 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown[client.ObjectKeyFromObject(vm)] == vm.UID
}

func (c *recent) newer(key types.NamespacedName, cached *api.VirtualMachine) *api.VirtualMachine {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.written[key]
	if own == nil {
		return cached
	}
	if own.UID == cached.UID && letGo(own) {
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

// caughtUp forgets what the cache has by now.
func (c *recent) caughtUp(cached *api.VirtualMachine) {
	_ = c.newer(client.ObjectKeyFromObject(cached), cached)
}

func (c *recent) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
	delete(c.shown, key)
}

// isUp tells whether a server's guest can be talked to.
func isUp(seen inventory.Observation) bool {
	return seen.Answer == inventory.Present && seen.Server.State == driver.StateRunning
}
