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

// outcome is the result of a call. It is partial if not all of the spec could be
// passed to the driver.
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

// powerWithoutSpec returns the present power state of a server whose driver asks for a call that does not depend on the
// spec. It is empty if the driver asks for none.
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
// stops; the guard cancels it when the Lease may be lost.
//
// If a Secret of the spec is missing, the driver gets only the power state, where that is enough for
// the operation. Otherwise the operation fails. With keptPower, which is the server's present power state, the driver
// is called nevertheless: it removes the remains of the last run, or applies the operator's settings to a machine that runs.
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
