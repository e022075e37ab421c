// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// kstatusOf returns what kstatus, which kpt, Flux and others use to wait, computes
// for a VM with the status that follows from an observation.
func kstatusOf(t *testing.T, p *step, change func(*policy.Input)) status.Status {
	t.Helper()
	vm := p.base.DeepCopy()
	vm.Status = p.statusAfter(change)
	vm.APIVersion, vm.Kind = api.SchemeGroupVersion.String(), "VirtualMachine"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	assert.NoError(t, err)
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	assert.NoError(t, err)
	return result.Status
}

// TestKstatus checks that waiting for a VM with kstatus ends. A VM that is as
// specified is Current. One that only a new spec can repair is Failed. Only one
// that is changing, or may change, is InProgress.
func TestKstatus(t *testing.T) {
	twins := vmtest.Present(driver.StateRunning)
	twins.Duplicates = []string{"id-1", "id-2"}
	completed := vmtest.ReportedVM().RestartPolicy(api.RestartNever)
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		change   func(*policy.Input)
		want     status.Status
	}{
		"being created":           {vmtest.ReportedVM(), vmtest.Gone(), nil, status.InProgressStatus},
		"fetching":                {vmtest.ReportedVM(), vmtest.Present(driver.StatePending), nil, status.InProgressStatus},
		"starting":                {vmtest.ReportedVM(), vmtest.Present(driver.StateStarting), nil, status.InProgressStatus},
		"running":                 {vmtest.ReportedVM(), vmtest.Present(driver.StateRunning), nil, status.CurrentStatus},
		"running, probe fails":    {vmtest.ReportedVM(), vmtest.Present(driver.StateRunning), func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true} }, status.InProgressStatus},
		"running, change waits":   {vmtest.ReportedVM().Status(vmtest.PendingRestart), vmtest.Present(driver.StateRunning), nil, status.InProgressStatus},
		"paused, change waits":    {vmtest.ReportedVM().Action(api.ActionPaused).Status(vmtest.PendingRestart), vmtest.Present(driver.StatePaused), nil, status.InProgressStatus},
		"running, image refused":  {vmtest.ReportedVM().Status(vmtest.RefusedImage), vmtest.Present(driver.StateRunning), nil, status.FailedStatus},
		"restarted by the engine": {vmtest.ReportedVM(), vmtest.Present(driver.StateRestarting), nil, status.InProgressStatus},
		"stopping":                {vmtest.ReportedVM().Action(api.ActionStopped), vmtest.Present(driver.StateStopping), nil, status.InProgressStatus},
		"stopped":                 {vmtest.ReportedVM().Action(api.ActionStopped), vmtest.Ended(0), nil, status.CurrentStatus},
		"stopped, image refused":  {vmtest.ReportedVM().Action(api.ActionStopped).Status(vmtest.RefusedImage), vmtest.Ended(0), nil, status.FailedStatus},
		"paused":                  {vmtest.ReportedVM().Action(api.ActionPaused), vmtest.Present(driver.StatePaused), nil, status.CurrentStatus},
		"completed":               {completed, vmtest.Ended(0), nil, status.CurrentStatus},
		"exited, Never":           {completed, vmtest.Ended(3), nil, status.FailedStatus},
		"exited, Always":          {vmtest.ReportedVM(), vmtest.Ended(3), nil, status.InProgressStatus},
		"create fails":            {vmtest.ReportedVM().Status(vmtest.Failing(api.OperationCreate, 3, time.Second)), vmtest.Gone(), nil, status.InProgressStatus},
		"refused":                 {vmtest.ReportedVM().Status(vmtest.Refused), vmtest.Gone(), nil, status.FailedStatus},
		"unknown driver":          {framework.NewVM("vm").Driver("xen").Generation(1), vmtest.Gone(), func(in *policy.Input) { in.Driver = "" }, status.FailedStatus},
		"another engine":          {vmtest.ReportedVM(), inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, nil, status.InProgressStatus},
		"engine away":             {vmtest.ReportedVM(), vmtest.Unknown(time.Minute), nil, status.InProgressStatus},
		"two servers":             {vmtest.ReportedVM(), twins, nil, status.InProgressStatus},
		"deletion":                {vmtest.ReportedVM().DeletionTimestamp(vmtest.T0), vmtest.Present(driver.StateRunning), nil, status.TerminatingStatus},
		"deletion, engine away":   {vmtest.ReportedVM().DeletionTimestamp(vmtest.T0), vmtest.Unknown(time.Minute), nil, status.TerminatingStatus},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := stepOf(tc.vm.Obj(), tc.observed)
			got := kstatusOf(t, p, tc.change)
			assert.True(t, got == tc.want, "%s, want %s", got, tc.want)
		})
	}
}
