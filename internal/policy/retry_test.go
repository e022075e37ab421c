// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"strings"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
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
		normal, slow := policy.Backoff(n, false), policy.Backoff(n, true)
		assert.True(t, normal == want.normal && slow == want.slow, "%d failures: %s, and %s if slow; want %s and %s", n, normal, slow, want.normal, want.slow)
	}
}

// TestIsStuck checks that recording the end of a run at a restart, and then the next run, does not count as
// a failure.
func TestIsStuck(t *testing.T) {
	for recordings, want := range map[int]bool{1: false, 2: false, 3: false, 4: true, 100: true} {
		got := policy.IsStuck(recordings)
		assert.True(t, got == want, "%d recordings in a row: %v, want %v", recordings, got, want)
	}
}

func TestIsAsReported(t *testing.T) {
	running := policy.ServerStatus{ID: "id-1", State: policy.StateRunning}
	pending, none := policy.ServerStatus{State: policy.StatePending}, policy.ServerStatus{}
	for name, tc := range map[string]struct {
		left     policy.ServerStatus
		observed policy.Observed
		want     bool
	}{
		"none, and none is found":        {none, policytest.Gone(), true},
		"none, and a fetch is found":     {none, policytest.Present(policy.StatePending), true},
		"none, and a server is found":    {none, policytest.Present(policy.StateRunning), false},
		"a fetch, and none is found":     {pending, policytest.Gone(), true},
		"a fetch, and a server is found": {pending, policytest.Present(policy.StateRunning), false},
		"a server, and it is found":      {running, policytest.Present(policy.StateRunning), true},
		"a server, and none is found":    {running, policytest.Gone(), false},
		"a server, and it is off":        {running, policytest.Present(policy.StateStopped), false},
		"a server, and another is found": {policy.ServerStatus{ID: "id-2", State: policy.StateRunning}, policytest.Present(policy.StateRunning), false},
		"a server, and a fetch is found": {running, policytest.Present(policy.StatePending), false},
	} {
		assert.Equal(t, name, policy.IsAsReported(tc.left, tc.observed), tc.want)
	}
}

// TestCleanupOfARefusedServer checks that what the last run has left is removed although the spec is refused,
// and that this is tried again after growing delays.
func TestCleanupOfARefusedServer(t *testing.T) {
	held := policytest.ChangeServer(policytest.Ended(1), func(s *policy.Server) { s.NeedsEnsure = true })
	vm := policytest.ReportedVM().With(policytest.Refused).With(policytest.WithServer("id-1", policy.StateStopped))
	for name, tc := range map[string]struct {
		observed policy.Observed
		failed   time.Duration
		want     policy.Step
		wake     time.Time
	}{
		"nothing is left":   {policytest.Ended(1), time.Hour, policy.StepNone, time.Time{}},
		"it has just tried": {held, 0, policy.StepNone, policytest.T0.Add(time.Second)},
		"later":             {held, time.Hour, policy.StepEnsure, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			in := vm.Observing(tc.observed)
			in.Since.Failure = policytest.T0.Add(-tc.failed)
			d := policy.Decide(in)
			assert.True(t, d.Action.Step == tc.want && d.WakeAt.Equal(tc.wake), "%s, wakes at %s, want step %q at %s", summaryOf(d), d.WakeAt, tc.want, tc.wake)
		})
	}
}

// TestEnsureOfARefusedServer checks that what the driver asks for of a server that runs is done although the spec is
// refused, at once by another leader, and by the same one after a wait that grows with each failure.
func TestEnsureOfARefusedServer(t *testing.T) {
	asks := policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.NeedsEnsure = true })
	vm := policytest.ReportedVM().With(policytest.Refused).With(policytest.WithServer("id-1", policy.StateRunning))
	for name, tc := range map[string]struct {
		observed policy.Observed
		attempts int32
		failed   time.Duration
		epoch    int64
		want     policy.Step
		wake     time.Time
	}{
		"it asks for nothing":   {policytest.Present(policy.StateRunning), 1, time.Hour, 0, policy.StepNone, time.Time{}},
		"it has just tried":     {asks, 1, 0, 0, policy.StepNone, policytest.T0.Add(time.Second)},
		"it has tried often":    {asks, 3, time.Second, 0, policy.StepNone, policytest.T0.Add(3 * time.Second)},
		"later":                 {asks, 3, time.Hour, 0, policy.StepEnsure, time.Time{}},
		"another leader's":      {asks, 9, 0, 1, policy.StepEnsure, time.Time{}},
		"another that need not": {policytest.Present(policy.StateRunning), 9, 0, 1, policy.StepNone, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			in := vm.Observing(tc.observed)
			in.VM.Status.Operation.Attempts, in.Epoch, in.Since.Failure = tc.attempts, tc.epoch, policytest.T0.Add(-tc.failed)
			d := policy.Decide(in)
			assert.True(t, d.Action.Step == tc.want && d.WakeAt.Equal(tc.wake), "%s, wakes at %s, want step %q at %s", summaryOf(d), d.WakeAt, tc.want, tc.wake)
		})
	}
}

// TestCleanupThatKeepsFailing checks that the first try to remove what the last run has left does not wait for
// the failures before, that each further wait is longer, up to that of other failures, and that the status says so.
func TestCleanupThatKeepsFailing(t *testing.T) {
	const left = "the remains of the last run"
	vm := policytest.ReportedVM().With(policytest.WithOperation(api.OperationStart, 0, "")).With(policytest.WithServer("id-1", policy.StateStopped))
	in := vm.Observing(policytest.ChangeServer(policytest.Ended(1), func(s *policy.Server) { s.NeedsEnsure = true }))
	in.VM.Status.Operation.Attempts, in.VM.Status.Operation.Failure, in.VM.Status.Operation.Generation = 20, api.FailureFailed, in.VM.Generation
	in.VM.Status.Operation.NextRetryTime = in.Now.Add(time.Hour)
	in.Since.Failure = in.Now.Add(-time.Second)
	in.Since.Cleanup = in.Now
	d := policy.Decide(in)
	assert.True(t, d.Action.Step == policy.StepEnsure && !strings.Contains(d.Status.Message, left), "the first try: %s, want that it does not wait", summaryOf(d))
	began, last := in.Now, time.Duration(0)
	for range 12 {
		in.Since.Failure = in.Now // a call has just failed
		d := policy.Decide(in)
		wait := d.WakeAt.Sub(in.Now)
		if d.Action.Step != policy.StepNone || wait < last || wait > policy.Backoff(in.VM.Status.Operation.Attempts, false) || !strings.Contains(d.Status.Message, left) {
			t.Fatalf("%s after the cleanup has failed for %s: %s, message %q; the wait before was %s", wait, in.Now.Sub(began), summaryOf(d), d.Status.Message, last)
		}
		in.Now, last = d.WakeAt, wait
		d = policy.Decide(in)
		assert.Require(t, d.Action.Step == policy.StepEnsure, "at the next try: %s", summaryOf(d))
	}
	if want := policy.Backoff(20, false); last != want {
		t.Errorf("the last wait is %s, want %s", last, want)
	}
}

// TestRefusedOperationWithAnOldRetry checks that an operation that waits for a new spec does not wake for a
// retry that was planned before.
func TestRefusedOperationWithAnOldRetry(t *testing.T) {
	vm := policytest.ReportedVM().With(policytest.Refused).With(policytest.WithServer("id-1", policy.StateStopped))
	in := vm.Observing(policytest.Ended(1))
	in.VM.Status.Operation.NextRetryTime = policytest.T0.Add(-time.Minute)
	d := policy.Decide(in)
	assert.True(t, d.Action.Step == policy.StepNone && d.WakeAt.IsZero() && d.NextTry.IsZero(), "%s, wakes at %s, next try %s", summaryOf(d), d.WakeAt, d.NextTry)
}

// TestRestartOfAServerThatIsGone checks that no restart is due of a server that is gone, and that the answer
// of another engine, which knows nothing of it, loses no request.
func TestRestartOfAServerThatIsGone(t *testing.T) {
	vm := policytest.ReportedVM().RestartedAt(policytest.T0)
	other := policytest.Gone()
	other.EngineID = "engine-2"
	for name, tc := range map[string]struct {
		observed policy.Observed
		want     bool
	}{"gone": {policytest.Gone(), true}, "another engine answers": {other, false}, "it goes": {policytest.Present(policy.StateRemoving), false}} {
		t.Run(name, func(t *testing.T) {
			d := policy.Decide(vm.Observing(tc.observed))
			assert.True(t, d.Status.RestartHandled == tc.want, "%s, the restart is done: %t, want %t", summaryOf(d), d.Status.RestartHandled, tc.want)
		})
	}
}

// TestHasRestarted checks that a time in a status, which has microseconds, is compared with a time of
// an engine, which has nanoseconds.
func TestHasRestarted(t *testing.T) {
	recorded, none := policytest.T0, time.Time{}
	for name, tc := range map[string]struct {
		recorded time.Time
		started  time.Time
		want     bool
	}{
		"the same":                  {recorded, policytest.T0, false},
		"the same, nanoseconds":     {recorded, policytest.T0.Add(999), false},
		"a microsecond later":       {recorded, policytest.T0.Add(1000), true},
		"nothing recorded":          {none, policytest.T0, false},
		"never started":             {recorded, none, false},
		"nothing recorded or known": {none, none, false},
	} {
		assert.Equal(t, name, policy.HasRestarted(tc.recorded, tc.started), tc.want)
	}
}

// TestNeedsEnsure checks that a driver which asks for an Ensure gets one in every state that else
// waits, even where the spec was passed before, and that a server which is off stays off.
func TestNeedsEnsure(t *testing.T) {
	starting, stopping := policytest.WithOperation(api.OperationStart, 0, ""), policytest.WithOperation(api.OperationStop, 0, "")
	for name, tc := range map[string]struct {
		state, action, policy string
		status                func(*policy.Input)
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
				vm = vm.With(tc.status)
			}
			observed := observations[tc.state]
			observed.Server.NeedsEnsure = true
			if tc.state == "starting" {
				observed.Server.Progress = "the pod waits to be scheduled"
			}
			d := policy.Decide(vm.Observing(observed))
			got := summaryOf(d)
			assert.True(t, got == tc.want, "got  %s\nwant %s", got, tc.want)
			isUpdate := d.Action.Operation == api.OperationUpdate
			assert.True(t, d.Action.FollowsUp == isUpdate, "follows up is %t, want %t", d.Action.FollowsUp, isUpdate)
			assert.True(t, !policy.Decide(vm.Generation(3).Observing(observed)).Action.FollowsUp, "with another generation, it follows up")
		})
	}
}

// TestNeedsEnsureInDeletion checks that a stop for a deletion waits for no driver that asks for an Ensure.
func TestNeedsEnsureInDeletion(t *testing.T) {
	vm := policytest.ReportedVM().DeletedAt(policytest.T0)
	observed := policytest.Present(policy.StateStopping)
	observed.Server.NeedsEnsure = true
	d := policy.Decide(vm.Observing(observed))
	assert.True(t, d.Action.Step == policy.StepEnsure && d.Action.Power == policy.PowerOff && d.Action.StopBy.Equal(policytest.T0.Add(30*time.Second)),
		"got %s, stop by %s", summaryOf(d), d.Action.StopBy)
}
