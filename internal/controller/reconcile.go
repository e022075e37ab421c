// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/probe"
	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/controller/vmclient"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

const (
	// callTimeout bounds one call to a driver.
	callTimeout = 30 * time.Second
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
	Client   *vmclient.Client
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
	// Decisions records what is decided; nil records nothing.
	Decisions *recorder.Recorder

	// Inventories are the inventories of all drivers that run here.
	Inventories []*inventory.Inventory

	unreported perVM[*unreportedWork]
	stages     stages
	facts      factTimes
	probes     *probe.Prober
}

// Reconcile compares a VirtualMachine with its server and takes the step that makes
// them agree. Up to maxSteps steps that end at once are taken in the same pass.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm, err := r.Client.Read(ctx, req.NamespacedName)
	if err != nil || vm != nil && vmclient.IsFinalized(vm) {
		return ctrl.Result{}, err
	}
	if vm == nil {
		r.forgetObject(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if policy.DriverOf(vm, r.Drivers) != r.Driver {
		r.forgetObject(req.NamespacedName) // a late key, or the orphan of another driver with this name
		return ctrl.Result{}, nil
	}
	bound, err := r.ensureFinalizer(ctx, vm)
	if err != nil {
		return resultForError(err)
	}
	p := r.gather(ctx, vm, bound)
	defer p.storeUnreported()
	var taken *policy.Decision
	//nolint:contextcheck // a readiness probe outlives the pass that starts it
	for steps := 0; p.decideStep(taken) && steps < maxSteps; steps++ {
		if taken, err = p.takeStep(ctx); err != nil || vmclient.IsFinalized(p.base) {
			return resultForError(err)
		}
	}
	return p.report(ctx)
}

// decideStep decides what to do next and reports whether there is a step to take.
// If the step that has just succeeded is due again, it had no effect, which counts
// as a failure.
func (p *reconciliation) decideStep(taken *policy.Decision) bool {
	p.decide()
	if taken != nil && p.decision.Action.IsSameStep(taken.Action) {
		p.recordFailure(*taken, fmt.Errorf("the %s driver reports success, and the server is %s still", p.r.Driver, stateText(p.observed.Observation)))
		p.finishDecision(decisions.Failed, p.failure)
		p.decide()
	}
	return p.decision.Action.Step != policy.StepNone
}

// decide decides from what is known now.
func (p *reconciliation) decide() {
	in := p.input()
	p.decision = policy.Decide(in)
	p.r.Decisions.Record(in, p.decision)
}

// takeStep takes the decided step, and records what came of it with the decision.
func (p *reconciliation) takeStep(ctx context.Context) (taken *policy.Decision, err error) {
	p.failure = nil
	taken, err = p.tryStep(ctx)
	switch {
	case err != nil:
		p.finishDecision(decisions.Ended, err)
	case p.failure != nil:
		p.finishDecision(decisions.Failed, p.failure)
	case taken != nil, vmclient.IsFinalized(p.base):
		p.finishDecision(decisions.Succeeded, nil)
	default:
		p.finishDecision(decisions.Outdated, nil)
	}
	return taken, err
}

// tryStep takes the decided step: it confirms what the step depends on, acts,
// observes what exists now, and records the outcome in the pass. It returns the
// decision if the step succeeded. It returns an error if the API failed, if this
// process may not act, or if a restart cannot be recorded; then the pass ends
// without a report.
func (p *reconciliation) tryStep(ctx context.Context) (taken *policy.Decision, err error) {
	decision := p.decision
	if confirmed, err := p.confirmStep(ctx); !confirmed || err != nil {
		return nil, err
	}
	if decision.Action.Step == policy.StepFinish {
		return nil, p.removeFinalizer(ctx)
	}
	if decision.Action.RecordFirst {
		if err := p.writeIntent(ctx); err != nil {
			return nil, err
		}
	}
	existed := p.observed.Answer == inventory.Present
	result := p.awaitOutcome(ctx, p.act(ctx))
	if first, ok := errors.AsType[*driver.RecordFirstError](result.err); ok {
		if result.err, err = p.recordObjects(ctx, first); result.err == nil || err != nil {
			return nil, err
		}
	}
	p.unreported = true
	if driver.MayNotAct(result.err) {
		return nil, result.err
	}
	result.err = p.observeOutcome(ctx, decision.Action, result.err)
	if p.recordOutcome(decision, existed, result) {
		return &decision, nil
	}
	return nil, nil
}

// resultForError turns an error into a result. A conflict or a missing object is
// left to the watch. If this process may not act, retry until leadership is resolved.
func resultForError(err error) (ctrl.Result, error) {
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

// reconciliation is one reconcile pass: what it observed, what it decided and what
// it did.
type reconciliation struct {
	r *Reconciler
	// base is the object as in the API. baseLive is set once the API itself has
	// confirmed it in this pass.
	base     *api.VirtualMachine
	baseLive bool
	// vm is base, with the status that follows from what was done.
	vm *api.VirtualMachine
	// observed is what is known of the server, and decision what follows from it.
	observed observation
	decision policy.Decision
	// done is the operation that has just succeeded.
	done api.OperationType
	// passedGeneration is the generation of the spec that was last passed to the driver.
	passedGeneration int64
	// stoppedRun is the run that had ended on request when the pass began.
	stoppedRun string
	// deletionBlocker says why the server may still be on another driver's engine.
	deletionBlocker string
	// recordings counts the steps in a row that had objects recorded and did nothing else.
	recordings int
	// vanished is set once the driver did not find the server that was observed.
	vanished bool
	// isOvertaken is set if another process changed the status right after this pass wrote it.
	isOvertaken bool
	// unreported is set while the status does not record what was done.
	unreported bool
	// failure is the error of the last step, if it was tried and failed.
	failure error
	// events are those of what was done, and ended is the event of a run that was
	// observed to end without Drover.
	events []pendingEvent
	ended  *pendingEvent
	// began is the operation that was under way when the pass began, and wasStarting is set if the
	// server was starting then.
	began       api.OperationType
	wasStarting bool
}
