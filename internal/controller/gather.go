// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// readObject returns the VirtualMachine, or nil if there is none. The cache may lag behind
// this process's last write, so readObject returns the newer of the two.
func (r *Reconciler) readObject(ctx context.Context, key types.NamespacedName) (*api.VirtualMachine, error) {
	vm := &api.VirtualMachine{}
	if err := r.Client.Get(ctx, key, vm); err != nil {
		r.forgetObject(key)
		return nil, client.IgnoreNotFound(err)
	}
	return r.writes.newerOf(key, vm), nil
}

// forgetObject drops all state about an object that is gone or belongs to another driver.
func (r *Reconciler) forgetObject(key types.NamespacedName) {
	r.writes.forgetObject(key)
	r.probes.Forget(key)
	r.facts.forgetObject(key)
}

// observation is what is known of a VirtualMachine's server. It is live if the
// engine itself has just answered, and nothing was done since.
type observation struct {
	inventory.Observation
	live bool
}

// gather combines the VirtualMachine, the inventory's answer, and what an earlier
// pass could not report. written is set if this pass has just written vm.
func (r *Reconciler) gather(vm *api.VirtualMachine, written bool) *reconciliation {
	p := &reconciliation{r: r, base: vm, vm: vm.DeepCopy(), baseLive: written}
	p.observeCached()
	// No server precedes the first binding, so there is nothing to query live.
	p.seen.live = written && p.seen.Answer == inventory.Gone && vm.Status.ObservedGeneration < 1
	if left := r.writes.findUnreported(vm); left != nil {
		p.vm.Status, p.events, p.unreported = *left.status.DeepCopy(), left.events, true
	} else {
		importStatus(&p.vm.Status, p.seen.Observation)
		p.detectCrash()
	}
	if p.vm.Status.Server != nil {
		p.shown = p.vm.Status.Server.Generation
	}
	if p.seen.Server.State == driver.StateStopped && IsStoppedByDrover(Input{VM: p.vm, Seen: p.seen.Observation}) {
		p.stoppedRun = p.seen.Server.Run
	}
	return p
}

// observeCached updates the observation from the inventory's cache.
func (p *reconciliation) observeCached() {
	p.seen = observation{Observation: p.r.observeServer(p.vm)}
}

// observeLive updates the observation by querying the engine. If the engine does
// not answer, the server is unknown afterwards.
func (p *reconciliation) observeLive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	seen, err := p.r.Inventory.Look(ctx, p.vm.UID)
	p.seen = observation{seen, err == nil}
	return err
}

// ensureLive queries the engine unless the observation is live already.
func (p *reconciliation) ensureLive(ctx context.Context) error {
	if p.seen.live {
		return nil
	}
	return p.observeLive(ctx)
}

// observeOutcome updates the observation after an action. After anything but a
// clear success it queries the engine for what exists now. It returns the action's
// error or, if a removal cannot be confirmed, that.
func (p *reconciliation) observeOutcome(ctx context.Context, action Action, err error) error {
	if err == nil && action.Step != StepDelete {
		p.observeCached()
		return nil
	}
	if lookErr := p.observeLive(ctx); err == nil {
		return lookErr
	}
	return err
}

// confirmStep verifies by live reads what the decided step depends on. Caches may
// lag behind users and behind a predecessor, which may have finished with the
// object or created the server. If confirmed is false, the pass decides again.
func (p *reconciliation) confirmStep(ctx context.Context) (confirmed bool, err error) {
	switch action := p.decision.Action; {
	case action.Step == StepFinish:
		return p.confirmGone(ctx), nil
	case action.RecordFirst:
		return p.confirmRun(ctx) // the write that follows confirms the object
	case action.Step == StepEnsure && action.Operation == api.OperationCreate:
		if err := p.confirmObject(ctx); err != nil {
			return false, err
		}
		return p.confirmAbsence(ctx), nil
	}
	return true, p.confirmObject(ctx)
}

// confirmObject verifies that the object is as the pass has it. Once is enough,
// since later writes fail with a conflict.
func (p *reconciliation) confirmObject(ctx context.Context) error {
	if p.baseLive {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := &api.VirtualMachine{}
	err := p.r.Live.Get(ctx, keyOf(p.base), now)
	switch {
	case err != nil:
		return err
	case now.UID != p.base.UID:
		return apierrors.NewNotFound(api.Resource("virtualmachines"), p.base.Name)
	case now.ResourceVersion != p.base.ResourceVersion:
		p.r.writes.recordWrite(now)
		return apierrors.NewConflict(api.Resource("virtualmachines"), p.base.Name, errors.New("the cache is behind"))
	}
	p.baseLive = true
	return nil
}

// confirmAbsence verifies that there is no server yet for a creation.
func (p *reconciliation) confirmAbsence(ctx context.Context) bool {
	if !p.seen.live {
		if err := p.observeLive(ctx); err != nil {
			p.recordFailure(p.decision, err)
			return false
		}
		if p.seen.Answer != inventory.Gone {
			return false
		}
	}
	if err := p.r.checkOtherDrivers(p.vm); err != nil {
		p.recordFailure(p.decision, err)
		return false
	}
	return true
}

// confirmRun verifies that the run that a restart must end is the current one: an
// older one would look as if it had been ended already. It returns an error if the
// engine does not answer, since a failure in the status would name the run.
func (p *reconciliation) confirmRun(ctx context.Context) (confirmed bool, err error) {
	if err := p.ensureLive(ctx); err != nil {
		return false, err
	}
	return p.seen.Answer == inventory.Present && p.seen.Server.Run == p.decision.Action.EndRun, nil
}

// confirmGone verifies that there is no server, so that the finalizer may be
// removed.
func (p *reconciliation) confirmGone(ctx context.Context) bool {
	if err := p.ensureLive(ctx); err != nil {
		p.recordFailure(p.decision, err)
		return false
	}
	if p.seen.Answer != inventory.Gone {
		return false
	}
	if p.decision.Action.AllDrivers {
		p.unproven = p.r.queryAllDrivers(ctx, p.vm)
	}
	return p.unproven == ""
}

// checkOtherDrivers refuses a creation while another driver's engine is known to have
// a server of the VirtualMachine. That happens if a binding was lost or forged
// before the first status write. Such a binding does not enter the status.
func (r *Reconciler) checkOtherDrivers(vm *api.VirtualMachine) error {
	for _, inv := range r.All {
		if inv == r.Inventory {
			continue
		}
		if seen := inv.Get(vm.UID); seen.Answer == inventory.Present {
			return driver.WithReason(api.ReasonEngineMismatch, driver.Errorf(driver.ErrRetry,
				"driver %s has the server %s of this VirtualMachine: set the annotation %s to %s/%s, or remove that server",
				inv.Name, seen.Server.ID, api.AnnotationBound, inv.Name, seen.EngineID))
		}
	}
	return nil
}

// ownWrites has this process's last write of each object until the cache has it, and
// what was done for an object since.
type ownWrites struct {
	mu      sync.Mutex
	written map[types.NamespacedName]*api.VirtualMachine
	unreported  map[types.NamespacedName]unreportedWork
}

// unreportedWork is what a pass did but could not write, for example after a conflict.
type unreportedWork struct {
	uid types.UID
	// base is the status in the API. status is the one that follows from what was
	// done.
	base, status *api.VirtualMachineStatus
	events       []pendingEvent
}

// findUnreported returns what was done for the object but is not in its status yet. It
// is nil if the status was written by another process since.
func (c *ownWrites) findUnreported(vm *api.VirtualMachine) *unreportedWork {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, ok := c.unreported[keyOf(vm)]
	if !ok || left.uid != vm.UID || !equality.Semantic.DeepEqual(left.base, &vm.Status) {
		return nil
	}
	return &left
}

// keepUnreported records what the pass did, unless that was written.
func (p *reconciliation) keepUnreported() {
	c := &p.r.writes
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.unreported {
		delete(c.unreported, keyOf(p.base))
		return
	}
	status := p.vm.Status.DeepCopy()
	if server := p.serverStatus(); server != nil {
		status.Server = server
	}
	if c.unreported == nil {
		c.unreported = map[types.NamespacedName]unreportedWork{}
	}
	c.unreported[keyOf(p.base)] = unreportedWork{p.base.UID, &p.base.Status, status, p.allEvents()}
}

func (c *ownWrites) newerOf(key types.NamespacedName, cached *api.VirtualMachine) *api.VirtualMachine {
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

func (c *ownWrites) recordWrite(vm *api.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written = map[types.NamespacedName]*api.VirtualMachine{}
	}
	c.written[client.ObjectKeyFromObject(vm)] = vm
}

// dropOutdated drops what the cache has by now.
func (c *ownWrites) dropOutdated(cached *api.VirtualMachine) {
	_ = c.newerOf(client.ObjectKeyFromObject(cached), cached)
}

func (c *ownWrites) forgetObject(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
	delete(c.unreported, key)
}

// IsRunning reports whether a server's guest is running.
func IsRunning(seen inventory.Observation) bool {
	return seen.Answer == inventory.Present && seen.Server.State == driver.StateRunning
}
