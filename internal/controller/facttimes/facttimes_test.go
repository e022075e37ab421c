// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package facttimes

import (
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
)

// TestFactTimes covers what is recorded of a VM, and for how long.
func TestFactTimes(t *testing.T) {
	var s FactTimes
	vm := vmtest.ReportedVM().Status(vmtest.Failing(api.OperationCreate, 1, time.Second)).Obj()
	first := s.Update(vm, vmtest.Gone(), vmtest.T0)
	again := s.Update(vm, vmtest.Gone(), vmtest.T0.Add(time.Minute))
	assert.True(t, first == again && first.Failure.Equal(vmtest.T0) && first.Operation.Equal(vmtest.T0),
		"%+v, later %+v: want both since %s", first, again, vmtest.T0)
	vm.Status.Operation.Attempts++
	got := s.Update(vm, vmtest.Gone(), vmtest.T0.Add(time.Minute))
	assert.True(t, got.Failure.Equal(vmtest.T0.Add(time.Minute)) && got.Operation.Equal(vmtest.T0), "another failure: %+v", got)
	twin := vm.DeepCopy()
	twin.UID = "uid-2"
	got = s.Update(twin, vmtest.Gone(), vmtest.T0.Add(time.Hour))
	assert.True(t, got.Operation.Equal(vmtest.T0.Add(time.Hour)), "another VM of the same name: %+v", got)
	left := vmtest.Present(driver.StateStopped)
	left.Server.NeedsEnsure = true
	s.Update(vm, left, vmtest.T0)
	got = s.Update(vm, left, vmtest.T0.Add(time.Hour))
	assert.True(t, got.Cleanup.Equal(vmtest.T0), "what the last run has left: %+v, want it since %s", got, vmtest.T0)
	vm.Status.Operation = nil
	got = s.Update(vm, vmtest.Present(driver.StateRunning), vmtest.T0)
	assert.True(t, got == (policy.Instants{}) && s.Get(KeyOf(vm)) == nil, "at rest: %+v, %v recorded", got, s.Get(KeyOf(vm)))
}

// TestTimesOfARun checks that a run counts from when this process observed it. The
// time of a run that was over by then is unknown.
func TestTimesOfARun(t *testing.T) {
	var s FactTimes
	over, crashing := vmtest.ShortRun(1, 3, 0)
	vm := vmtest.ReportedVM().Status(crashing).Obj()
	if got := s.Update(vm, over, vmtest.T0); got.Exit != vmtest.T0 || !got.Run.IsZero() {
		t.Errorf("a run that was not observed: %+v", got)
	}
	s.Update(vm, vmtest.Present(driver.StateRunning), vmtest.T0.Add(time.Second))
	got := s.Update(vm, over, vmtest.T0.Add(3*time.Second))
	assert.Equal(t, "a run that was observed lasted", got.Exit.Sub(got.Run), 2*time.Second)
}
