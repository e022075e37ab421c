// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestCreateProgress checks that only steps that succeeded are reported as done.
func TestCreateProgress(t *testing.T) {
	t.Parallel()
	var shown []string
	p := &progress{
		clock: testingclock.NewFakeClock(kittest.Now), terminal: kit.Terminal{IsTerminal: true, Width: 40}, program: "kubectl vm",
		print: func(text string) { shown = append(shown, text) },
	}
	failed := kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, metav1.ConditionFalse).Obj()
	failed.Status.Operation = &api.Operation{Attempts: 1, Reason: api.ReasonImageUnavailable, LastError: "pull image localhost:5000/absent: refused"}
	crashed := kittest.NewVM(api.PhaseActive, api.ReasonRestarting, metav1.ConditionFalse).Obj()
	crashed.Status.Message = "the server ended with code 127"
	for _, vm := range []*api.VirtualMachine{
		kittest.NewVM(api.PhaseCreating, api.ReasonFetching, metav1.ConditionFalse).Obj(),
		failed,
		kittest.NewVM(api.PhaseCreating, api.ReasonFetching, metav1.ConditionFalse).Obj(),
		kittest.NewVM(api.PhaseActive, api.ReasonProbeFailing, metav1.ConditionFalse).Obj(),
		crashed,
		kittest.NewVM(api.PhaseActive, api.ReasonProbeFailing, metav1.ConditionFalse).Obj(),
		kittest.NewVM(api.PhaseActive, api.ReasonRunning, metav1.ConditionTrue).Obj(),
	} {
		p.observeVM(vm)
	}
	name := failed.Name
	want := []string{
		"  ✗ ImageUnavailable: pull image\n    localhost:5000/absent: refused",
		"    What to do: kubectl vm explain " + name,
		"  ✓ image fetched                0s",
		"  ✗ Restarting: the server ended with\n    code 127",
		"    What it printed: kubectl vm logs " + name,
		"  ✓ server restarted             0s",
		"  ✓ guest answers                0s",
	}
	assert.True(t, slices.Equal(shown, want), "printed %q, want %q", shown, want)
}
