// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

func TestUnavailableDriver(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, framework.NewVM("vm").Namespace(environment.CreateNamespace(t)).Driver("xen"))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonUnknownDriver),
		framework.HasMessage("xen"), framework.HasMessage("docker, fake"),
		framework.HasCondition(api.ConditionStalled, metav1.ConditionTrue), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	environment.WaitForEvent(t, vm, api.ReasonUnknownDriver)
	environment.DeleteVM(t, vm)
	environment.WaitForDeletion(t, vm)
}
