// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy/policytest"
)

func TestBackoff(t *testing.T) {
	for n, want := range map[int32]struct{ normal, slow time.Duration }{
		0:   {time.Second, 30 * time.Second},
		1:   {time.Second, 30 * time.Second},
		2:   {2 * time.Second, 30 * time.Second},
		3:   {4 * time.Second, 30 * time.Second},
		5:   {16 * time.Second, 30 * time.Second},
		6:   {32 * time.Second, 32 * time.Second},
		9:   {256 * time.Second, 256 * time.Second},
		10:  {5 * time.Minute, 5 * time.Minute},
		100: {5 * time.Minute, 5 * time.Minute},
	} {
		if normal, slow := Backoff(n, false), Backoff(n, true); normal != want.normal || slow != want.slow {
			t.Errorf("%d failures: %s, and %s if slow; want %s and %s", n, normal, slow, want.normal, want.slow)
		}
	}
}

// TestIsStuck checks that what a restart has recorded, its end and then the next run, is no failure.
func TestIsStuck(t *testing.T) {
	for recordings, want := range map[int]bool{1: false, 2: false, 3: false, 4: true, 100: true} {
		if got := IsStuck(recordings); got != want {
			t.Errorf("%d recordings in a row: %v, want %v", recordings, got, want)
		}
	}
}

func TestIsAsReported(t *testing.T) {
	running := &api.ServerStatus{ID: "id-1", State: string(driver.StateRunning)}
	pending := &api.ServerStatus{State: string(driver.StatePending)}
	for name, tc := range map[string]struct {
		left     *api.ServerStatus
		observed inventory.Observation
		want     bool
	}{
		"none, and none is found":         {nil, policytest.Gone(), true},
		"none, and a fetch is found":      {nil, policytest.Present(driver.StatePending), true},
		"none, and a server is found":     {nil, policytest.Present(driver.StateRunning), false},
		"a fetch, and none is found":      {pending, policytest.Gone(), true},
		"a fetch, and a server is found":  {pending, policytest.Present(driver.StateRunning), false},
		"a server, and it is found":       {running, policytest.Present(driver.StateRunning), true},
		"a server, and none is found":     {running, policytest.Gone(), false},
		"a server, and it is off":         {running, policytest.Present(driver.StateStopped), false},
		"a server, and another is found":  {&api.ServerStatus{ID: "id-2", State: string(driver.StateRunning)}, policytest.Present(driver.StateRunning), false},
		"a server, and a fetch is found":  {running, policytest.Present(driver.StatePending), false},
		"a server, and nothing is listed": {&api.ServerStatus{}, policytest.Gone(), false},
	} {
		if got := IsAsReported(tc.left, tc.observed); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestCleanupOfARefusedServer checks that what the last run has left is removed although the spec is refused,
// and that this is tried again after growing delays.
func TestCleanupOfARefusedServer(t *testing.T) {
	held := policytest.ChangeServer(policytest.Ended(1), func(s *driver.Server) { s.NeedsEnsure = true })
	vm := policytest.ReportedVM().Status(policytest.Refused).Status(policytest.WithServer("id-1", driver.StateStopped)).Obj()
	for name, tc := range map[string]struct {
		observed inventory.Observation
		failed   time.Duration
		want     Step
		wake     time.Time
	}{
		"nothing is left":   {policytest.Ended(1), time.Hour, StepNone, time.Time{}},
		"it has just tried": {held, 0, StepNone, policytest.T0.Add(time.Second)},
		"later":             {held, time.Hour, StepEnsure, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			in := inputOf(vm, tc.observed)
			in.Since.Failure = policytest.T0.Add(-tc.failed)
			if d := Decide(in); d.Action.Step != tc.want || !d.WakeAt.Equal(tc.wake) {
				t.Errorf("%s, wakes at %s, want step %d at %s", summaryOf(d), d.WakeAt, tc.want, tc.wake)
			}
		})
	}
}

// TestRefusedOperationWithAnOldRetry checks that an operation that waits for a new spec does not wake for a
// retry that was planned before.
func TestRefusedOperationWithAnOldRetry(t *testing.T) {
	vm := policytest.ReportedVM().Status(policytest.Refused).Status(policytest.WithServer("id-1", driver.StateStopped)).Obj()
	vm.Status.Operation.NextRetryTime = &metav1.MicroTime{Time: policytest.T0.Add(-time.Minute)}
	if d := Decide(inputOf(vm, policytest.Ended(1))); d.Action.Step != StepNone || !d.WakeAt.IsZero() || !d.NextTry.IsZero() {
		t.Errorf("%s, wakes at %s, next try %s", summaryOf(d), d.WakeAt, d.NextTry)
	}
}

// TestRestartOfAServerThatIsGone checks that no restart is due of a server that is gone, and that the answer
// of another engine, which knows nothing of it, loses no request.
func TestRestartOfAServerThatIsGone(t *testing.T) {
	vm := policytest.ReportedVM().Obj()
	vm.Spec.RestartedAt = &metav1.Time{Time: policytest.T0}
	other := policytest.Gone()
	other.EngineID = "engine-2"
	for name, tc := range map[string]struct {
		observed inventory.Observation
		want     bool
	}{"gone": {policytest.Gone(), true}, "another engine answers": {other, false}, "it goes": {policytest.Present(driver.StateRemoving), false}} {
		t.Run(name, func(t *testing.T) {
			if d := Decide(inputOf(vm, tc.observed)); d.Status.RestartHandled != tc.want {
				t.Errorf("%s, the restart is done: %t, want %t", summaryOf(d), d.Status.RestartHandled, tc.want)
			}
		})
	}
}

// TestHasRestarted checks that a status, which has microseconds, is compared with what an
// engine reports, which has nanoseconds.
func TestHasRestarted(t *testing.T) {
	recorded := &metav1.MicroTime{Time: policytest.T0}
	for name, tc := range map[string]struct {
		recorded *metav1.MicroTime
		started  time.Time
		want     bool
	}{
		"the same":                  {recorded, policytest.T0, false},
		"the same, nanoseconds":     {recorded, policytest.T0.Add(999), false},
		"a microsecond later":       {recorded, policytest.T0.Add(1000), true},
		"nothing recorded":          {nil, policytest.T0, false},
		"never started":             {recorded, time.Time{}, false},
		"nothing recorded or known": {nil, time.Time{}, false},
	} {
		status := &api.VirtualMachineStatus{StartTime: tc.recorded}
		if got := HasRestarted(status, driver.Server{StartedAt: tc.started}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestNeedsEnsure checks that a driver which asks for an Ensure gets one in every state that else
// waits, even where the spec was passed before, and that a server which is off stays off.
func TestNeedsEnsure(t *testing.T) {
	starting := func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: api.OperationStart, StartedAt: metav1.NewMicroTime(policytest.T0)}
	}
	stopping := func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: api.OperationStop, StartedAt: metav1.NewMicroTime(policytest.T0)}
	}
	for name, tc := range map[string]struct {
		state, action, policy string
		status                func(*api.VirtualMachineStatus)
		want                  string
	}{
		"starting":        {"starting", "active", "Always", starting, "ensure On Start => Creating Starting"},
		"starting paused": {"starting", "paused", "Always", starting, "ensure Paused Start => Creating Starting"},
		"stopping":        {"stopping", "stopped", "Always", stopping, "ensure Off Stop => Active Stopping"},
		"completed":       {"ended 0", "active", "OnFailure", nil, "ensure Off Update => Stopped Completed ready"},
		"exited":          {"ended 1", "active", "Never", nil, "ensure Off Update => Failed Exited"},
		"exited, again":   {"ended 1", "active", "Always", nil, "ensure On Start => Creating Restarting"},
	} {
		t.Run(name, func(t *testing.T) {
			vm := policytest.ReportedVM().Action(api.Action(tc.action)).RestartPolicy(api.RestartPolicy(tc.policy))
			if tc.status != nil {
				vm = vm.Status(tc.status)
			}
			observed := observations[tc.state]
			observed.Server.NeedsEnsure = true
			if tc.state == "starting" {
				observed.Server.Progress = "the pod waits to be scheduled"
			}
			d := Decide(inputOf(vm.Obj(), observed))
			if got := summaryOf(d); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if isUpdate := d.Action.Operation == api.OperationUpdate; d.Action.FollowsUp != isUpdate {
				t.Errorf("follows up is %t, want %t", d.Action.FollowsUp, isUpdate)
			}
			if d := Decide(inputOf(vm.Generation(3).Obj(), observed)); d.Action.FollowsUp {
				t.Error("with another generation, it follows up")
			}
		})
	}
}

// TestNeedsEnsureInDeletion checks that a stop for a deletion waits for no driver that asks for an Ensure.
func TestNeedsEnsureInDeletion(t *testing.T) {
	vm := policytest.ReportedVM().Obj()
	vm.DeletionTimestamp = &metav1.Time{Time: policytest.T0}
	observed := policytest.Present(driver.StateStopping)
	observed.Server.NeedsEnsure = true
	d := Decide(inputOf(vm, observed))
	if d.Action.Step != StepEnsure || d.Action.Power != driver.PowerOff || !d.Action.StopBy.Equal(policytest.T0.Add(30*time.Second)) {
		t.Errorf("got %s, stop by %s", summaryOf(d), d.Action.StopBy)
	}
}
