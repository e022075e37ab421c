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
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// kstatusOf returns what kstatus, which kpt, Flux and others use to wait, computes
// for a VM with the status that follows from an observation.
func kstatusOf(t *testing.T, p *reconciliation, change func(*policy.Input)) status.Status {
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
	twins := policytest.Present(driver.StateRunning)
	twins.Duplicates = []string{"id-1", "id-2"}
	completed := policytest.ReportedVM().RestartPolicy(api.RestartNever)
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		change   func(*policy.Input)
		want     status.Status
	}{
		"being created":           {policytest.ReportedVM(), policytest.Gone(), nil, status.InProgressStatus},
		"fetching":                {policytest.ReportedVM(), policytest.Present(driver.StatePending), nil, status.InProgressStatus},
		"starting":                {policytest.ReportedVM(), policytest.Present(driver.StateStarting), nil, status.InProgressStatus},
		"running":                 {policytest.ReportedVM(), policytest.Present(driver.StateRunning), nil, status.CurrentStatus},
		"running, probe fails":    {policytest.ReportedVM(), policytest.Present(driver.StateRunning), func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true} }, status.InProgressStatus},
		"running, change waits":   {policytest.ReportedVM().Status(policytest.PendingRestart), policytest.Present(driver.StateRunning), nil, status.InProgressStatus},
		"paused, change waits":    {policytest.ReportedVM().Action(api.ActionPaused).Status(policytest.PendingRestart), policytest.Present(driver.StatePaused), nil, status.InProgressStatus},
		"running, image refused":  {policytest.ReportedVM().Status(policytest.RefusedImage), policytest.Present(driver.StateRunning), nil, status.FailedStatus},
		"restarted by the engine": {policytest.ReportedVM(), policytest.Present(driver.StateRestarting), nil, status.InProgressStatus},
		"stopping":                {policytest.ReportedVM().Action(api.ActionStopped), policytest.Present(driver.StateStopping), nil, status.InProgressStatus},
		"stopped":                 {policytest.ReportedVM().Action(api.ActionStopped), policytest.Ended(0), nil, status.CurrentStatus},
		"stopped, image refused":  {policytest.ReportedVM().Action(api.ActionStopped).Status(policytest.RefusedImage), policytest.Ended(0), nil, status.FailedStatus},
		"paused":                  {policytest.ReportedVM().Action(api.ActionPaused), policytest.Present(driver.StatePaused), nil, status.CurrentStatus},
		"completed":               {completed, policytest.Ended(0), nil, status.CurrentStatus},
		"exited, Never":           {completed, policytest.Ended(3), nil, status.FailedStatus},
		"exited, Always":          {policytest.ReportedVM(), policytest.Ended(3), nil, status.InProgressStatus},
		"create fails":            {policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 3, time.Second)), policytest.Gone(), nil, status.InProgressStatus},
		"refused":                 {policytest.ReportedVM().Status(policytest.Refused), policytest.Gone(), nil, status.FailedStatus},
		"unknown driver":          {framework.NewVM("vm").Driver("xen").Generation(1), policytest.Gone(), func(in *policy.Input) { in.Driver = "" }, status.FailedStatus},
		"another engine":          {policytest.ReportedVM(), inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, nil, status.InProgressStatus},
		"engine away":             {policytest.ReportedVM(), policytest.Unknown(time.Minute), nil, status.InProgressStatus},
		"two servers":             {policytest.ReportedVM(), twins, nil, status.InProgressStatus},
		"deletion":                {policytest.ReportedVM().DeletionTimestamp(policytest.T0), policytest.Present(driver.StateRunning), nil, status.TerminatingStatus},
		"deletion, engine away":   {policytest.ReportedVM().DeletionTimestamp(policytest.T0), policytest.Unknown(time.Minute), nil, status.TerminatingStatus},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := reconciliationOf(tc.vm.Obj(), tc.observed)
			if got := kstatusOf(t, p, tc.change); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
