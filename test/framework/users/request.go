// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"cmp"
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// RequestTimeout bounds requests to the API.
const RequestTimeout = 5 * time.Second

// RetryRequest repeats an operation until it succeeds, because the API server may be down
// and others write the objects too. An object that the API server finds invalid is a
// final error.
func RetryRequest(ctx context.Context, do func(context.Context) error) error {
	var final error
	err := assert.Poll(ctx, "a request", func() error {
		attempt, cancel := context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
		err := do(attempt)
		if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
			final = err
			return nil
		}
		return err
	})
	return cmp.Or(final, err)
}

// CheckApplied returns an error unless a VirtualMachine is as its spec says, by its
// status.
func CheckApplied(vm *api.VirtualMachine) error {
	phases := map[api.Action]api.Phase{
		api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped, api.ActionPaused: api.PhasePaused,
	}
	err := framework.HasCondition(api.ConditionReady, metav1.ConditionTrue)(vm)
	switch {
	case err != nil:
	case vm.Status.Phase != phases[vm.Spec.Action] || vm.Status.ObservedGeneration != vm.Generation:
		err = fmt.Errorf("phase %s of generation %d for action %s of generation %d", vm.Status.Phase, vm.Status.ObservedGeneration, vm.Spec.Action, vm.Generation)
	case vm.Spec.RestartedAt != nil && !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt):
		err = fmt.Errorf("restarted at %v, not %v", vm.Status.RestartedAt, vm.Spec.RestartedAt)
	}
	if err != nil {
		err = fmt.Errorf("%w; its status is %s", err, framework.FormatStatus(vm))
	}
	return err
}
