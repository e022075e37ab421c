// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
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

// act begins the decided action and returns the channel on which its outcome
// arrives.
func (s *step) act(ctx context.Context) <-chan outcome {
	result := make(chan outcome, 1)
	vm, action, target := s.vm.DeepCopy(), s.decision.Action, s.driverTarget()
	mayCleanUp := policy.IsCleanupDue(translate.Observed(&s.observed.Observation))
	go func() { result <- s.r.callDriver(ctx, vm, action, target, mayCleanUp) }()
	return result
}

// callDriver calls the driver. A call that has begun continues while the controller
// stops; the guard cancels it when the Lease may be lost.
//
// If a Secret of the spec is missing, the driver gets the power state alone, where the operation
// needs no more. Otherwise the operation fails, but if mayCleanUp is set, the driver removes what
// the last run of the server has left, and the server stays off.
func (r *Reconciler) callDriver(ctx context.Context, vm *api.VirtualMachine, action policy.Action, target driver.Target, mayCleanUp bool) outcome {
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
	missing := r.resolveSecrets(ctx, vm, &spec)
	fails := missing != nil && !needsPowerOnly(action)
	if fails && !mayCleanUp {
		return outcome{err: missing}
	}
	if spec.PowerOnly = missing != nil; fails {
		spec.Power = driver.PowerOff
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

func (r *Reconciler) resolveSecrets(ctx context.Context, vm *api.VirtualMachine, spec *driver.ServerSpec) (err error) {
	if spec.UserData, err = r.readSecret(ctx, vm.Namespace, "userData", vm.Spec.UserData); err != nil {
		return err
	}
	spec.NetworkData, err = r.readSecret(ctx, vm.Namespace, "networkData", vm.Spec.NetworkData)
	return err
}

// readSecret reads the text of a data source, always live: a cache would need the
// right to list Secrets.
func (r *Reconciler) readSecret(ctx context.Context, namespace, field string, from *api.DataSource) (driver.Secret, error) {
	switch {
	case from == nil:
		return driver.Secret{}, nil
	case from.Inline != nil:
		return driver.NewSecret(*from.Inline), nil
	case from.SecretKeyRef == nil:
		return driver.Secret{}, nil
	}
	ref := from.SecretKeyRef
	var secret corev1.Secret
	if err := r.Client.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, &secret); err != nil {
		return driver.Secret{}, secretError(field, ref, err)
	}
	text, ok := secret.Data[ref.Key]
	if !ok {
		return driver.Secret{}, driver.WithReason(api.ReasonSecretUnavailable, driver.Errorf(driver.ErrRetry,
			"spec.%s: Secret %q has no key %q", field, ref.Name, ref.Key))
	}
	return driver.NewSecret(string(text)), nil
}

func secretError(field string, ref *api.SecretKeyRef, err error) error {
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("Secret %q does not exist in the VirtualMachine's namespace", ref.Name) //nolint:staticcheck // Secret is a kind's name
	}
	return driver.WithReason(api.ReasonSecretUnavailable, driver.Errorf(driver.ErrRetry, "spec.%s: %w", field, err))
}
