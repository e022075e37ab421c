// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// outcome is the result of a call. It is partial if not all of the spec could be
// passed to the driver.
type outcome struct {
	err     error
	server  driver.Server
	partial bool
}

// act begins the decided action and returns the channel on which its outcome
// arrives.
func (p *reconciliation) act(ctx context.Context) <-chan outcome {
	result := make(chan outcome, 1)
	vm, action, target := p.vm.DeepCopy(), p.decision.Action, p.driverTarget()
	isOff := p.observed.Answer == inventory.Present && p.observed.Server.State == driver.StateStopped
	go func() { result <- p.r.callDriver(ctx, vm, action, target, isOff) }()
	return result
}

// callDriver calls the driver. A call that has begun continues while the controller
// stops; the guard cancels it when the Lease may be lost.
//
// If a Secret of the spec is missing, the driver gets the power state alone. A server that
// is off stays off then, and what its last run has left is removed all the same.
func (r *Reconciler) callDriver(ctx context.Context, vm *api.VirtualMachine, action policy.Action, target driver.Target, isOff bool) outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if action.Step == policy.StepDelete {
		err := r.Inventory.Delete(ctx, target, action.Retain)
		if errors.Is(err, driver.ErrNotFound) {
			err = nil
		}
		return outcome{err: err}
	}
	spec := serverSpec(vm)
	spec.Target, spec.Power, spec.StopBy, spec.RestartRun = target, action.Power, action.StopBy, action.EndRun
	spec.Objects = recordedObjects(vm)
	hidden := r.resolveSecrets(ctx, vm, &spec)
	isBlocked := hidden != nil && !powerOnly[action.Operation] && (!action.FollowsUp || action.Power != driver.PowerOff)
	if isBlocked && !isOff {
		return outcome{err: hidden}
	}
	if spec.PowerOnly = hidden != nil; isBlocked {
		spec.Power = driver.PowerOff
	}
	server, err := r.Inventory.Ensure(ctx, spec)
	if err == nil && isBlocked {
		err = hidden
	}
	return outcome{err: err, server: server, partial: hidden != nil}
}

// driverTarget returns the server that the decision was made for. If there is
// another one by now, or none, the driver refuses.
func (p *reconciliation) driverTarget() driver.Target {
	t := driver.Target{UID: p.vm.UID, Epoch: p.r.Epoch()}
	if p.observed.Answer == inventory.Present {
		t.ID = p.observed.Server.ID
	}
	return t
}

// powerOnly are the operations that need only the power state of the spec, so that
// a missing Secret does not block them.
var powerOnly = map[api.OperationType]bool{api.OperationStop: true, api.OperationPause: true, api.OperationResume: true}

func (r *Reconciler) resolveSecrets(ctx context.Context, vm *api.VirtualMachine, spec *driver.ServerSpec) (err error) {
	if spec.UserData, err = r.readSecret(ctx, vm.Namespace, "userData", vm.Spec.UserData); err != nil {
		return err
	}
	spec.NetworkData, err = r.readSecret(ctx, vm.Namespace, "networkData", vm.Spec.NetworkData)
	return err
}
