// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

const (
	// callTimeout bounds one call to a driver.
	callTimeout = 30 * time.Second
	// progressDelay is how long a step may take before the status reports it.
	progressDelay = 100 * time.Millisecond
	// conflictRetry is the delay before a write that met a conflict is retried. By
	// then the watch has delivered the newer object.
	conflictRetry = 50 * time.Millisecond
	// fencedRetry is the delay before a step is retried that this process was not
	// allowed to take.
	fencedRetry = 500 * time.Millisecond
	// maxSteps bounds the steps of one reconcile pass; the next pass continues from
	// there.
	maxSteps = 6
)

// Reconciler reconciles the VirtualMachines of one driver with their servers.
type Reconciler struct {
	// Client reads VirtualMachines from the cache and writes to the API.
	Client client.Client
	// Live reads past the cache.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Driver names the driver; empty for VMs whose driver does not run here.
	Driver string
	// Drivers are the names of all drivers that run here, the default first.
	Drivers []string
	// Inventory of the driver; nil where Driver is empty.
	Inventory *inventory.Inventory
	// Epoch returns the epoch of this leader, 0 on a standby.
	Epoch func() uint64
	// MayAct returns an error while this process is not certain to lead.
	MayAct func() error

	// All are the inventories of all drivers that run here.
	All []*inventory.Inventory

	recent    recent
	sightings sightings
	probes    *prober
}

// Reconcile compares a VirtualMachine with its server and takes the step that makes
// them agree. Steps that end at once are taken in the same pass.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm, err := r.get(ctx, req.NamespacedName)
	if err != nil || vm == nil || isFinalized(vm) {
		return ctrl.Result{}, err
	}
	if driverOf(vm, r.Drivers) != r.Driver {
		r.forget(req.NamespacedName) // a late key, or the orphan of another driver with this name
		return ctrl.Result{}, nil
	}
	bound, err := r.ensureFinalizer(ctx, vm)
	if err != nil {
		return retry(err)
	}
	p := r.gather(bound)
	defer p.keepUnreported()
	p.live = bound != vm
	p.fresh = p.live && p.seen.Answer == inventory.Gone && vm.Status.ObservedGeneration < 1 // it has just been bound
	for steps := 0; ; steps++ {
		//nolint:contextcheck // a readiness probe outlives the pass that starts it
		if p.decideStep(); p.decision.Action.Step == stepNone || steps == maxSteps {
			break
		}
		if done, err := r.act(ctx, p); done || err != nil {
			p.reported = done
			return retry(err)
		}
	}
	return retryOnError(r.report(ctx, p))
}

// retry turns an error into a result. A conflict or a missing object is left to the
// watch. If this process may not act, retry until leadership is resolved.
func retry(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case driver.MayNotAct(err):
		return ctrl.Result{RequeueAfter: fencedRetry}, nil
	}
	return ctrl.Result{}, err
}

func retryOnError(result ctrl.Result, err error) (ctrl.Result, error) {
	if err != nil {
		return retry(err)
	}
	return result, nil
}

// reconciliation is one reconcile pass: what it observed, what it plans and what it
// did.
type reconciliation struct {
	r    *Reconciler
	base *api.VirtualMachine // as in the API
	vm   *api.VirtualMachine // base, with the status that this pass leads to
	// live is set once the API itself has confirmed base in this pass. confirmed is
	// set once the engines were asked whether a server may be created.
	live, confirmed bool
	// stoppedRun is the run that had ended on request when the pass began.
	stoppedRun string
	// acted is set if something was done, and reported once the status records it.
	acted, reported bool
	seen            inventory.Observation
	// fresh is set while seen comes from a live look and nothing was done since.
	fresh    bool
	decision Decision
	did      api.OperationType
	// shown is the generation of the spec that the driver was last shown.
	shown int64
	// missed is set once the driver did not find the server that was observed.
	missed bool
	// notes are the events of what was done, and crash is the event of an observed
	// crash.
	notes     []note
	crash     *note
	probe     probeState
	elsewhere string
}

// decideStep plans the next step. The readiness probe of a server that the last
// step started begins here.
func (p *reconciliation) decideStep() {
	p.probe = p.r.probes.check(p.base, p.seen)
	now := p.r.Clock.Now()
	p.decision = decide(Input{
		VM: p.vm, Seen: p.seen, Now: now, Done: p.did, ShownGeneration: p.shown, Probe: p.probe,
		Since: p.r.sightings.observe(p.vm, p.seen, now), Unproven: p.elsewhere,
		Driver: p.r.Driver, Drivers: p.r.Drivers, Epoch: p.epoch(),
	})
}
