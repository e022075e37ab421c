// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// act carries the plan's step out and takes note of what came of it. It
// reports done when the object has been let go, and an error of the API alone:
// the engine's errors are part of the pass.
func (r *Reconciler) act(ctx context.Context, p *pass) (done bool, err error) {
	if p.plan.step == stepFinish {
		return r.finish(ctx, p)
	}
	if p.plan.intent {
		if err := r.writeIntent(ctx, p); err != nil {
			return false, err
		}
	}
	p.settle(ctx, r.call(ctx, p))
	return false, nil
}

// call runs the step beside a timer: when it is not over soon, the status says
// what is under way. If that cannot be written, the pass's last write tells.
func (r *Reconciler) call(ctx context.Context, p *pass) error {
	result := make(chan error, 1)
	vm, plan := p.vm.DeepCopy(), p.plan
	go func() { result <- r.callDriver(ctx, vm, plan) }()
	timer := r.Clock.NewTimer(silent)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C():
	}
	if err := r.write(ctx, p); err != nil {
		logf.FromContext(ctx).V(1).Info("Progress not written", "cause", err.Error())
	}
	return <-result
}

// writeIntent writes the operation down before it is taken, so that whoever
// comes after a crash can tell whether it was. It fails when somebody else has
// written the object meanwhile.
func (r *Reconciler) writeIntent(ctx context.Context, p *pass) error {
	p.vm.Status.Operation = &api.Operation{Type: p.plan.operation, StartedAt: p.now(), Run: p.plan.endRun, Epoch: p.epoch()}
	return r.write(ctx, p)
}

// callDriver lets a call that has begun come to its end when the controller is
// told to stop.
func (r *Reconciler) callDriver(ctx context.Context, vm *api.VirtualMachine, plan plan) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	target := driver.Target{UID: vm.UID, Epoch: r.Epoch()}
	if seen := r.Inventory.Get(vm.UID); seen.Answer == inventory.Present {
		target.ID = seen.Server.ID
	}
	if plan.step == stepDelete {
		err := r.Inventory.Delete(ctx, target, plan.retain)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		return err
	}
	spec := serverSpec(vm)
	spec.Target, spec.Power, spec.StopBy, spec.EndRun = target, plan.power, plan.stopBy, plan.endRun
	if err := r.revealInto(ctx, vm, &spec); err != nil && vm.DeletionTimestamp == nil {
		return err
	}
	_, err := r.Inventory.Ensure(ctx, spec)
	return err
}

func (r *Reconciler) revealInto(ctx context.Context, vm *api.VirtualMachine, spec *driver.ServerSpec) (err error) {
	if spec.UserData, err = r.reveal(ctx, vm.Namespace, "userData", vm.Spec.UserData); err != nil {
		return err
	}
	spec.NetworkData, err = r.reveal(ctx, vm.Namespace, "networkData", vm.Spec.NetworkData)
	return err
}

// settle takes the step's result into the pass. After anything but a clear
// success the engine is asked what there is now.
func (p *pass) settle(ctx context.Context, callErr error) {
	before, existed := p.plan, p.seen.Answer == inventory.Present
	if callErr != nil || before.step == stepDelete {
		p.look(ctx)
	} else {
		p.seen, p.fresh = p.r.Inventory.Get(p.vm.UID), false
	}
	if callErr == nil {
		p.succeed(before, existed)
		p.decide()
		if p.plan.step == before.step && p.plan.operation == before.operation {
			callErr = fmt.Errorf("the %s driver reports success, and the server is %s still", p.r.Driver, stateOf(p.seen))
		}
	}
	switch {
	case errors.Is(callErr, driver.ErrNotFound):
		p.did = "" // it went while we acted on it: decide anew
	case callErr != nil:
		p.fail(before, callErr)
	}
}

func stateOf(seen inventory.Observation) string {
	if seen.Answer == inventory.Present {
		return string(seen.Server.State)
	}
	return "not there"
}

// succeed clears what the status says of the operation's failures. A start that
// follows a quick end is counted: it has yet to prove stable.
func (p *pass) succeed(plan plan, existed bool) {
	status := &p.vm.Status
	p.did = plan.operation
	if plan.step == stepEnsure {
		status.ObservedGeneration = p.vm.Generation
	}
	p.noteSuccess(plan, existed)
	op := status.Operation
	if plan.operation == api.OperationStart && plan.reason == api.ReasonRestarting {
		attempts := int32(1)
		if op != nil && op.Type == api.OperationStart {
			attempts += op.Attempts
		}
		status.Operation = &api.Operation{Type: plan.operation, Attempts: attempts, StartedAt: p.now(), LastError: plan.message, Epoch: p.epoch()}
		return
	}
	if op != nil && op.Type == plan.operation && plan.operation != api.OperationRestart && !underWay(p.seen) {
		status.Operation = nil
	}
}

// underWay tells whether the engine still works on what was asked of it, so
// that the operation's failures are not forgotten yet.
func underWay(seen inventory.Observation) bool {
	if seen.Answer != inventory.Present {
		return false
	}
	switch seen.Server.State {
	case driver.StatePending, driver.StateStopping, driver.StateStarting, driver.StateRemoving, driver.StateRestarting:
		return true
	case driver.StateRunning, driver.StatePaused, driver.StateStopped:
	}
	return false
}

// fail writes the operation's failure into the pass's status, where decide
// finds it. An engine out of reach is no failure of the operation.
func (p *pass) fail(plan plan, err error) {
	p.did = ""
	if errors.Is(err, driver.ErrUnavailable) {
		p.unavailable(err)
		return
	}
	status := &p.vm.Status
	op := &api.Operation{Type: plan.operation, StartedAt: p.now(), Epoch: p.epoch()}
	if status.Operation != nil && status.Operation.Type == plan.operation {
		op = status.Operation.DeepCopy()
	}
	op.Attempts++
	op.LastError = clip(err.Error())
	status.Operation, status.Reason, status.Message = op, reasonOf(err), op.LastError
	status.ObservedGeneration = p.vm.Generation
	status.Server = serverStatus(status.Server, p.seen)
	if final(err) {
		op.NextRetryTime = nil
		p.setStalled(true)
	} else {
		next := metav1.NewMicroTime(p.r.Clock.Now().Add(backoff(op.Attempts, errors.Is(err, driver.ErrExhausted))))
		op.NextRetryTime = &next
		p.setStalled(false)
	}
	p.noteFailure(plan.operation, err)
}

// unavailable makes the pass treat the engine as unknown even if the inventory
// has not found out yet.
func (p *pass) unavailable(err error) {
	if p.seen.Answer == inventory.Unknown {
		return
	}
	p.seen = inventory.Observation{EngineID: p.seen.EngineID, DownSince: p.r.Clock.Now(), Cause: err}
}

func (p *pass) now() metav1.MicroTime { return metav1.NewMicroTime(p.r.Clock.Now()) }

func (p *pass) epoch() int64 { return int64(p.r.Epoch()) } //nolint:gosec // a resourceVersion

// final tells whether only a new spec can help.
func final(err error) bool {
	return errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported)
}

// reasonOf turns an error into a word for status.reason.
func reasonOf(err error) string {
	if reason := driver.ReasonOf(err); reason != "" {
		return reason
	}
	switch {
	case errors.Is(err, driver.ErrInvalid):
		return api.ReasonInvalid
	case errors.Is(err, driver.ErrUnsupported):
		return api.ReasonUnsupported
	case errors.Is(err, driver.ErrExhausted):
		return api.ReasonExhausted
	}
	return api.ReasonOperationFailed
}
