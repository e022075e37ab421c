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
	"cloudnative.tw/drover/test/vmtest"
)

// kstatusOf returns what kstatus, which kpt, Flux and others use to wait, computes
// for a VM with the status that follows from an observation.
func kstatusOf(t *testing.T, vm *api.VirtualMachine, in Input) status.Status {
	t.Helper()
	r := &Reconciler{Driver: in.Driver, Drivers: in.Drivers, Clock: vmtest.Clock(T0), Epoch: func() uint64 { return 7 }}
	p := &reconciliation{r: r, base: vm, vm: vm.DeepCopy(), seen: observation{Observation: in.Seen}, decision: Decide(in)}
	vm = vm.DeepCopy()
	vm.Status = p.newStatus(T0)
	vm.APIVersion, vm.Kind = api.SchemeGroupVersion.String(), "VirtualMachine"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	if err != nil {
		t.Fatal(err)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	return result.Status
}

// TestKstatus checks that waiting for a VM with kstatus ends. A VM that is as
// specified is Current. One that only a new spec can repair is Failed. Only one
// that is changing, or may change, is InProgress.
func TestKstatus(t *testing.T) {
	twins := Present(driver.StateRunning)
	twins.Duplicates = []string{"id-1", "id-2"}
	completed := Observed().RestartPolicy(api.RestartNever)
	tests := map[string]struct {
		vm     *vmtest.Builder
		seen   inventory.Observation
		change func(*Input)
		want   status.Status
	}{
		"being created":           {Observed(), Gone(), nil, status.InProgressStatus},
		"fetching":                {Observed(), Present(driver.StatePending), nil, status.InProgressStatus},
		"starting":                {Observed(), Present(driver.StateStarting), nil, status.InProgressStatus},
		"running":                 {Observed(), Present(driver.StateRunning), nil, status.CurrentStatus},
		"running, probe fails":    {Observed(), Present(driver.StateRunning), func(in *Input) { in.Probe = ProbeResult{Wanted: true} }, status.InProgressStatus},
		"running, change waits":   {Observed().Status(PendingRestart), Present(driver.StateRunning), nil, status.InProgressStatus},
		"running, image refused":  {Observed().Status(RefusedImage), Present(driver.StateRunning), nil, status.FailedStatus},
		"restarted by the engine": {Observed(), Present(driver.StateRestarting), nil, status.InProgressStatus},
		"stopping":                {Observed().Action(api.ActionStopped), Present(driver.StateStopping), nil, status.InProgressStatus},
		"stopped":                 {Observed().Action(api.ActionStopped), Ended(0), nil, status.CurrentStatus},
		"stopped, image refused":  {Observed().Action(api.ActionStopped).Status(RefusedImage), Ended(0), nil, status.FailedStatus},
		"paused":                  {Observed().Action(api.ActionPaused), Present(driver.StatePaused), nil, status.CurrentStatus},
		"completed":               {completed, Ended(0), nil, status.CurrentStatus},
		"exited, Never":           {completed, Ended(3), nil, status.FailedStatus},
		"exited, Always":          {Observed(), Ended(3), nil, status.InProgressStatus},
		"create fails":            {Observed().Status(Failing(api.OperationCreate, 3, time.Second)), Gone(), nil, status.InProgressStatus},
		"refused":                 {Observed().Status(Refused), Gone(), nil, status.FailedStatus},
		"unknown driver":          {vmtest.VM("vm").Driver("xen").Generation(1), Gone(), withoutDriver, status.FailedStatus},
		"another engine":          {Observed(), inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, nil, status.InProgressStatus},
		"engine away":             {Observed(), Unknown(time.Minute), nil, status.InProgressStatus},
		"two servers":             {Observed(), twins, nil, status.InProgressStatus},
		"deletion":                {Observed().Deleted(T0), Present(driver.StateRunning), nil, status.TerminatingStatus},
		"deletion, engine away":   {Observed().Deleted(T0), Unknown(time.Minute), nil, status.TerminatingStatus},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			vm := tc.vm.Obj()
			in := inputOf(vm, tc.seen)
			if tc.change != nil {
				tc.change(&in)
			}
			if got := kstatusOf(t, vm, in); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}
