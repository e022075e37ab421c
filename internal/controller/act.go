// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/secrets"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// outcome is the result of a call to the driver. It is partial if only a part of the spec was passed to the driver.
type outcome struct {
	err     error
	server  driver.Server
	partial bool
}

// startAction starts the decided action and returns the channel on which its outcome
// arrives.
func (s *step) startAction(ctx context.Context) <-chan outcome {
	result := make(chan outcome, 1)
	vm, action, target := s.vm.DeepCopy(), s.decision.Action, s.driverTarget()
	keptPower := powerWithoutSpec(translate.Observed(&s.observed.Observation))
	go func() { result <- s.r.callDriver(ctx, vm, action, target, keptPower) }()
	return result
}

// powerWithoutSpec returns the present power state of the server if the driver asks for a call that does not depend on
// the spec, and otherwise "".
func powerWithoutSpec(observed policy.Observed) driver.Power {
	switch {
	case policy.IsCleanupDue(observed):
		return driver.PowerOff
	case observed.Answer != policy.Present || !observed.Server.NeedsEnsure:
	case observed.Server.State == policy.StateRunning:
		return driver.PowerOn
	case observed.Server.State == policy.StatePaused:
		return driver.PowerPaused
	}
	return ""
}

// callDriver calls the driver. A call that has begun continues while the controller
// stops; the guard cancels the call when the Lease may be lost.
//
// If a Secret of the spec is missing, callDriver passes only the power state, if that is enough for the operation.
// Otherwise the operation fails. Even then it calls the driver if keptPower, the server's present power state, is not
// empty: the driver has to remove the remains of the last run, or to apply new settings of the operator.
func (r *Reconciler) callDriver(ctx context.Context, vm *api.VirtualMachine, action policy.Action, target driver.Target, keptPower driver.Power) outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if action.Step == policy.StepDelete {
		err := r.Inventory.Delete(ctx, target, action.Retain)
		if errors.Is(err, driver.ErrNotFound) {
			err = nil
		}
		return outcome{err: err}
	}
	spec := translate.ServerSpec(vm)
	spec.Target, spec.Power, spec.StopBy, spec.RestartRun = target, driver.Power(action.Power), action.StopBy, action.EndRun
	spec.Objects = translate.Objects(vm)
	missing := secrets.Resolve(ctx, r.Client.Live, vm, &spec)
	fails := missing != nil && !needsPowerOnly(action)
	if fails && keptPower == "" {
		return outcome{err: missing}
	}
	if spec.PowerOnly = missing != nil; fails {
		spec.Power, spec.RestartRun = keptPower, ""
	}
	server, err := r.Inventory.Ensure(ctx, spec)
	if err == nil && fails {
		err = missing
	}
	return outcome{err: err, server: server, partial: missing != nil}
}

// needsPowerOnly reports whether an action needs only the power state of the spec, so that a missing
// Secret does not block it.
func needsPowerOnly(a policy.Action) bool {
	switch a.Operation {
	case api.OperationStop, api.OperationPause, api.OperationResume:
		return true
	case api.OperationUpdate:
		return a.FollowsUp && a.Power == policy.PowerOff
	case api.OperationCreate, api.OperationStart, api.OperationRestart, api.OperationDelete, api.OperationRelease:
	}
	return false
}

// driverTarget returns the server that the decision was made for. If there is
// another one by now, or none, the driver refuses.
func (s *step) driverTarget() driver.Target {
	t := driver.Target{UID: s.vm.UID, Epoch: s.r.Epoch()}
	if s.observed.Answer == inventory.Present {
		t.ID = s.observed.Server.ID
	}
	return t
}
