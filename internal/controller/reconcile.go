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
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/controller/filesync"
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
	// conflictRetry is the delay before another pass after a write has failed with a
	// conflict. By then the watch has delivered the newer object.
	conflictRetry = 50 * time.Millisecond
	// fencedRetry is the delay before another pass after this process was not allowed to take a step.
	fencedRetry = 500 * time.Millisecond
	// maxSteps bounds the steps of one pass. The next pass takes further steps.
	maxSteps = 6
)

// Reconciler reconciles the VirtualMachines of one driver with their servers.
type Reconciler struct {
	Client   *vmclient.Client
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Driver is the name of the driver, empty for VMs whose driver does not run here.
	Driver string
	// Drivers are the names of all drivers that run here, the default first.
	Drivers []string
	// Inventory is the inventory of the driver, nil if Driver is empty.
	Inventory *inventory.Inventory
	// Epoch returns the epoch of this leader, 0 on a standby.
	Epoch func() uint64
	// MayAct returns an error while this process is not certain to lead.
	MayAct func() error
	// Decisions records the decisions. A nil Recorder records nothing.
	Decisions *recorder.Recorder

	// Inventories are the inventories of all drivers that run here.
	Inventories []*inventory.Inventory

	unreported facttimes.PerVM[*unreportedWork]
	stages     stages
	times      facttimes.FactTimes
	probes     *probe.Prober
	files      *filesync.Syncer
}

// Reconcile compares a VirtualMachine with its server and takes steps until the server is
// as the object says, or until a step has to wait. It takes at most maxSteps steps.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	vm, err := r.Client.Read(ctx, req.NamespacedName)
	if err != nil || vm != nil && vmclient.IsFinalized(vm) {
		return ctrl.Result{}, err
	}
	if vm == nil || policy.DriverOf(vm, r.Drivers) != r.Driver {
		r.forgetObject(req.NamespacedName) // the VirtualMachine is gone, or belongs to another driver
		return ctrl.Result{}, nil
	}
	bound, err := r.ensureFinalizer(ctx, vm)
	if err != nil {
		return resultForError(err)
	}
	known := r.gatherFacts(ctx, vm, bound)
	decision := r.decideFrom(known) //nolint:contextcheck // a readiness probe outlives the pass that starts it
	for steps := 0; decision.Action.Step != policy.StepNone && steps < maxSteps; steps++ {
		var succeeded bool
		if known, succeeded, err = r.takeStep(ctx, known, decision); err != nil || vmclient.IsFinalized(known.base) {
			r.storeUnreported(known, decision)
			return resultForError(err)
		}
		known, decision = r.decideNext(known, decision, succeeded) //nolint:contextcheck // as above
	}
	known.files = r.files.Check(known.base, known.observed.Observation) //nolint:contextcheck // as above
	known, result, err := r.reportStatus(ctx, known, decision)
	r.storeUnreported(known, decision)
	return result, err
}

// facts has the knowledge of a pass: gatherFacts returns the first facts, and each step returns updated facts.
type facts struct {
	// base is the object as it is in the API. baseLive is set once the API server has
	// confirmed base in this pass.
	base     *api.VirtualMachine
	baseLive bool
	// vm is base with the status that results from the steps of this pass.
	vm *api.VirtualMachine
	// observed is the known state of the server.
	observed observation
	// passedGeneration is the generation of the spec that was last passed to the driver.
	passedGeneration int64
	// stoppedRun is the run that had ended on request when the pass began.
	stoppedRun string
	// began is the operation that was under way when the pass began. wasStarting is set if the
	// server was starting when the pass began.
	began       api.OperationType
	wasStarting bool
	// deletionBlocker says why the deletion waits: another driver's engine has the server, or may have it.
	deletionBlocker string
	// files is the last result for spec.files.
	files filesync.Result
	done
}

// done has the results of the steps that a pass has taken.
type done struct {
	// operation is the operation that has just succeeded.
	operation api.OperationType
	// recordings counts the steps in a row that only recorded objects in the status.
	recordings int
	// vanished is set once the driver did not find the server that was observed.
	vanished bool
	// unreported is set while the status does not report what was done.
	unreported bool
	// events are the events of the steps. ended is the event of a run that was observed
	// to end without Drover.
	events []pendingEvent
	ended  *pendingEvent
}

// pass has the facts and the decision from which a status and its events follow.
type pass struct {
	r *Reconciler
	facts
	decision policy.Decision
}

// decideFrom makes and records the decision that follows from the known facts.
func (r *Reconciler) decideFrom(known facts) policy.Decision {
	in := r.inputOf(known)
	decision := policy.Decide(in)
	r.Decisions.Record(in, decision)
	return decision
}

// decideNext decides again after a step. If a step has succeeded and the same step is due again, the step
// had no effect and counts as failed.
func (r *Reconciler) decideNext(known facts, last policy.Decision, succeeded bool) (facts, policy.Decision) {
	decision := r.decideFrom(known)
	if !succeeded || !decision.Action.IsSameStep(last.Action) {
		return known, decision
	}
	s := step{r: r, facts: known, decision: last}
	s.recordFailure(fmt.Errorf("the %s driver reports success, but the server is still %s", r.Driver, stateText(known.observed.Observation)))
	r.finishDecision(known.base, decisions.Failed, s.failure)
	return s.facts, r.decideFrom(s.facts)
}

// step is a step that a pass takes.
type step struct {
	r *Reconciler
	facts
	decision policy.Decision
	// failure is the error of the step, if it was tried and failed.
	failure error
}

// takeStep takes the decided step, records its outcome with the decision, and returns the facts after
// the step. It returns an error if the API server failed, if this process may not act, or if a restart
// could not be recorded. The pass then ends without a report.
func (r *Reconciler) takeStep(ctx context.Context, known facts, decision policy.Decision) (_ facts, succeeded bool, err error) {
	s := step{r: r, facts: known, decision: decision}
	succeeded, err = s.takeStep(ctx)
	switch {
	case err != nil:
		r.finishDecision(s.base, decisions.Ended, err)
	case s.failure != nil:
		r.finishDecision(s.base, decisions.Failed, s.failure)
	case succeeded, vmclient.IsFinalized(s.base):
		r.finishDecision(s.base, decisions.Succeeded, nil)
	default:
		r.finishDecision(s.base, decisions.Outdated, nil)
	}
	return s.facts, succeeded, err
}

// pass returns the pass as it would report now.
func (s *step) pass() *pass { return &pass{s.r, s.facts, s.decision} }

// takeStep confirms what the step depends on, acts, observes what exists now, and records the outcome
// in the facts.
func (s *step) takeStep(ctx context.Context) (succeeded bool, err error) {
	action := s.decision.Action
	if confirmed, err := s.confirmDecision(ctx); !confirmed || err != nil {
		return false, err
	}
	if action.Step == policy.StepFinish {
		return false, s.removeFinalizer(ctx)
	}
	if action.RecordFirst {
		if err := s.writeIntent(ctx); err != nil {
			return false, err
		}
	}
	existed := s.observed.Answer == inventory.Present
	result := s.awaitOutcome(ctx, s.startAction(ctx))
	if first, ok := errors.AsType[*driver.RecordFirstError](result.err); ok {
		if result.err, err = s.recordObjects(ctx, first); result.err == nil || err != nil {
			return false, err
		}
	}
	s.unreported = true
	if driver.MayNotAct(result.err) {
		return false, result.err
	}
	result.err = s.observeOutcome(ctx, result.err)
	return s.recordOutcome(existed, result), nil
}

// resultForError turns an error into a result. It does not return an error for a conflict or a
// missing object, since the watch delivers the change, nor if this process may not act: then
// passes are repeated until it is clear who leads.
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
