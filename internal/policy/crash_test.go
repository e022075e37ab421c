// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
)

// TestRunTime checks that the length of a run is measured by this process's clock
// if it observed the run.
func TestRunTime(t *testing.T) {
	observed, crashing := policytest.ShortRun(1, 3, 0)
	observed.Server.StartedAt = observed.Server.Exit.At.Add(-time.Hour) // by the engine's clock
	in := policytest.ReportedVM().With(crashing).Observing(observed)
	in.Since = policy.Instants{Exit: policytest.T0}
	assert.Equal(t, "a run that was not observed", policy.RunTime(in), time.Hour)
	in.Since = policy.Instants{Run: policytest.T0.Add(time.Second), Exit: policytest.T0.Add(3 * time.Second)}
	assert.Equal(t, "a run that was observed", policy.RunTime(in), 2*time.Second)
}

// TestShortRuns checks how many runs in a row are counted as too short, and when the server
// starts again, by how long the last run took and how many starts went before.
func TestShortRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		ran      time.Duration
		attempts int32 // 0: no operation
		want     int32
		wake     time.Duration
	}{
		"the first":              {time.Second, 0, 1, 0},
		"the third":              {time.Second, 2, 3, 2 * time.Second},
		"almost stable":          {policy.StableRun - 1, 2, 3, 2 * time.Second},
		"stable":                 {policy.StableRun, 2, 1, 0},
		"a failed start between": {time.Second, 1, 2, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			observed, looping := policytest.ShortRun(1, tc.attempts, 0) // just now
			observed.Server.StartedAt = policytest.T0.Add(-tc.ran)
			vm := policytest.ReportedVM()
			if tc.attempts > 0 {
				vm = vm.With(looping)
			}
			d := policy.Decide(vm.Observing(observed))
			var wake, next time.Time
			if tc.wake > 0 {
				wake = policytest.T0.Add(tc.wake)
				next = wake
			}
			assert.True(t, d.Action.ShortRuns == tc.want && d.WakeAt.Equal(wake) && d.NextTry.Equal(next) && (d.Action.Step == policy.StepEnsure) == (tc.wake == 0),
				"%s, %d short runs, wakes at %s, next try %s", summaryOf(d), d.Action.ShortRuns, d.WakeAt, d.NextTry)
		})
	}
}

// TestEvictedRuns checks that evictions in a row count although each run was longer than a stable one, and
// that neither the first of them nor the end of another kind does.
func TestEvictedRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		ran                 time.Duration
		attempts            int32
		wasEvicted, evicted bool
		want                int32
		wake                time.Duration
	}{
		"the first":              {time.Minute, 0, false, true, 1, 0},
		"the second":             {time.Minute, 1, true, true, 2, time.Second},
		"the fifth":              {9 * time.Minute, 4, true, true, 5, 8 * time.Second},
		"after a long run":       {policy.StableAfterEviction, 4, true, true, 1, 0},
		"after crashes":          {time.Minute, 4, false, true, 1, 0},
		"a crash after":          {time.Minute, 4, true, false, 1, 0},
		"a short run, evicted":   {time.Second, 4, false, true, 5, 8 * time.Second},
		"a crash soon after one": {time.Second, 1, true, false, 2, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			observed, looping := policytest.ShortRun(137, tc.attempts, 0)
			observed.Server.StartedAt, observed.Server.Exit.Evicted = policytest.T0.Add(-tc.ran), tc.evicted
			vm := policytest.ReportedVM()
			if tc.attempts > 0 {
				vm = vm.With(looping).With(func(in *policy.Input) { in.VM.Status.Operation.Evicted = tc.wasEvicted })
			}
			d := policy.Decide(vm.Observing(observed))
			var wake time.Time
			if tc.wake > 0 {
				wake = policytest.T0.Add(tc.wake)
			}
			if a := d.Action; a.ShortRuns != tc.want || a.Evicted != tc.evicted || !d.WakeAt.Equal(wake) || (a.Step == policy.StepEnsure) != (tc.wake == 0) {
				t.Errorf("%s, %d short runs, evicted %t, wakes at %s", summaryOf(d), a.ShortRuns, a.Evicted, d.WakeAt)
			}
		})
	}
}

// TestCountedEviction checks that an eviction which is counted still counts when the server does not show it
// any more.
func TestCountedEviction(t *testing.T) {
	observed, looping := policytest.ShortRun(0, 3, 0)
	observed.Server.StartedAt, observed.Server.Exit.ByHost = policytest.T0.Add(-time.Minute), true
	counted := func(in *policy.Input) {
		in.VM.Status.Operation.Evicted, in.VM.Status.Operation.Run = true, in.Observed.Server.Run
	}
	d := policy.Decide(policytest.ReportedVM().With(looping).Observing(observed))
	assert.Equal(t, "a long run that was not evicted counts", d.Action.ShortRuns, 1)
	in := policytest.ReportedVM().With(looping).Observing(observed)
	counted(&in)
	a := policy.Decide(in).Action
	assert.True(t, a.ShortRuns == 3 && a.Evicted, "%+v", a)
}

// TestEvictedServerThatGoes checks that the evictions of a server that is gone between two runs, as the
// server of an ephemeral VM is, still count as evictions.
func TestEvictedServerThatGoes(t *testing.T) {
	_, looping := policytest.ShortRun(137, 3, 0)
	evicted := func(in *policy.Input) { in.VM.Status.Operation.Evicted = true }
	d := policy.Decide(policytest.ReportedVM().With(looping).With(evicted).Observing(policytest.Gone()))
	a := d.Action
	assert.True(t, a.Step == policy.StepEnsure && a.ShortRuns == 3 && a.Evicted, "%s, %+v", summaryOf(d), a)
}

// TestFailedStartIsNoShortRun checks that attempts of another operation are not counted.
func TestFailedStartIsNoShortRun(t *testing.T) {
	observed, _ := policytest.ShortRun(1, 0, 0)
	vm := policytest.ReportedVM().With(policytest.Failing(api.OperationUpdate, 5, 0))
	d := policy.Decide(vm.Observing(observed))
	assert.True(t, d.Action.ShortRuns == 1 && d.Action.Step == policy.StepEnsure, "%s, %d short runs", summaryOf(d), d.Action.ShortRuns)
}

func TestEndText(t *testing.T) {
	for want, server := range map[string]policy.Server{
		"the server ended by itself with code 0":                         {Exit: policy.Exit{HasEnded: true, Reason: "Completed"}},
		"the server ended with code 137 (OOMKilled)":                     {Exit: policy.Exit{HasEnded: true, Code: 137, Reason: "OOMKilled"}},
		"the server ended with code 2":                                   {Exit: policy.Exit{HasEnded: true, Code: 2}},
		"the server ended with code 3":                                   {Exit: policy.Exit{HasEnded: true, Code: 3, Reason: "Error"}},
		"the server ended with code 128: user is unknown":                {Exit: policy.Exit{HasEnded: true, Code: 128, Reason: "Error", Message: "user is unknown"}},
		"the server ended with code 0, and the pod was evicted":          {Exit: policy.Exit{HasEnded: true, Reason: "Completed"}, Disruption: "the pod was evicted"},
		"the server ended with code 6 (Forced), and the pod was deleted": {Exit: policy.Exit{HasEnded: true, Code: 6, Reason: "Forced", ByHost: true}, Disruption: "the pod was deleted"},
	} {
		got := policy.EndText(server)
		assert.True(t, got == want, "got %q, want %q", got, want)
	}
}

// TestRunsEndedByOthers checks that a run which others end is followed by another whatever the restart
// policy, that it counts if it was short, and that nothing is started again since a drain removes what is
// left of a run that was over before.
func TestRunsEndedByOthers(t *testing.T) {
	killed, looping := policytest.ShortRun(137, 5, 0)
	killed.Server.Run, killed.Server.Disruption = "run-6", "the pod was deleted"
	done := policytest.ChangeServer(killed, func(s *policy.Server) { s.Exit.Code = 0 })
	byHost := policytest.ChangeServer(killed, func(s *policy.Server) { s.Exit.ByHost, s.Disruption = true, "" })
	stopping := policytest.WithOperation(api.OperationStop, time.Second, "")
	reported := func(in *policy.Input) {
		in.VM.Status.Server = policy.ServerStatus{ID: "id-1", State: policy.StateStopped, Run: "run-6"}
	}
	for name, tc := range map[string]struct {
		observed policy.Observed
		status   func(*policy.Input)
		want     string
		runs     int32
	}{
		"the first":                      {killed, func(*policy.Input) {}, "ensure On Start => Creating Restarting", 1},
		"the first, whose stop was seen": {killed, stopping, "ensure On Start => Creating Restarting", 1},
		"the sixth":                      {killed, looping, "wait Start => Failed Restarting", 6},
		"the sixth, by its host":         {byHost, looping, "wait Start => Failed Restarting", 6},
		"the sixth, which waits":         {killed, func(in *policy.Input) { looping(in); reported(in) }, "wait Start => Failed Restarting", 6},
		"a guest that was done":          {done, looping, "wait => Stopped Completed ready", 0},
		"a failed guest, drained later":  {killed, reported, "wait => Failed Exited", 0},
		"a failed guest, whose sidecar was drained": {killed, func(in *policy.Input) {
			in.VM.Status.Server = policy.ServerStatus{ID: "id-1", State: policy.StateStopping, Run: "run-6"}
		}, "wait => Failed Exited", 0},
		"a guest that was seen to be drained": {killed, func(in *policy.Input) {
			stopping(in)
			in.VM.Status.Server = policy.ServerStatus{ID: "id-1", State: policy.StateStopping, Run: "run-6"}
		}, "ensure On Start => Creating Restarting", 1},
		"one that Drover stopped before": {killed, func(in *policy.Input) { in.VM.Status.Server.StoppedRun = "run-6" }, "ensure On Start => Creating Starting", 0},
		"one that Drover stopped before, and is starting again": {killed, func(in *policy.Input) {
			policytest.WithOperation(api.OperationStart, time.Second, "")(in)
			in.VM.Status.Server.StoppedRun = "run-6"
		}, "ensure On Start => Creating Starting", 0},
		"one that Drover stopped as well": {policytest.ChangeServer(killed, func(s *policy.Server) { s.Disruption = "" }), stopping, "ensure On Start => Creating Starting", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := policy.Decide(policytest.ReportedVM().RestartPolicy(api.RestartNever).With(tc.status).Observing(tc.observed))
			got := summaryOf(d)
			assert.True(t, got == tc.want && d.Action.ShortRuns == tc.runs, "got %s, %d short runs, want %s, %d", got, d.Action.ShortRuns, tc.want, tc.runs)
		})
	}
}

// TestCrashesOfAServerThatGoes checks that crashes count although the server is gone between two runs, as
// the server of an ephemeral VM is, and that each run counts once.
func TestCrashesOfAServerThatGoes(t *testing.T) {
	ended, crashing := policytest.ShortRun(1, 3, 0)
	counted := func(in *policy.Input) {
		crashing(in)
		in.VM.Status.Operation.Run, in.VM.Status.Operation.LastError = "run-1", "the server ended with code 1"
	}
	before := policytest.ChangeServer(ended, func(s *policy.Server) { s.Exit.At = policytest.T0.Add(-time.Minute) })
	other := policytest.ChangeServer(ended, func(s *policy.Server) { s.Run = "run-2" })
	for name, tc := range map[string]struct {
		observed policy.Observed
		action   api.Action
		want     string
		runs     int32
	}{
		"it goes":               {policytest.Present(policy.StateRemoving), api.ActionActive, "wait Start => Creating Terminating", 0},
		"it is gone":            {policytest.Gone(), api.ActionActive, "ensure On Start => Creating Restarting", 3},
		"it is gone, to be off": {policytest.Gone(), api.ActionStopped, "ensure Off Create => Creating Creating", 0},
		"it is counted":         {before, api.ActionActive, "ensure On Start => Creating Restarting", 3},
		"it is counted, now":    {ended, api.ActionActive, "wait Start => Failed Restarting", 3},
		"the next crash":        {other, api.ActionActive, "wait Start => Failed Restarting", 4},
	} {
		t.Run(name, func(t *testing.T) {
			d := policy.Decide(policytest.ReportedVM().With(counted).Action(tc.action).Observing(tc.observed))
			got := summaryOf(d)
			assert.True(t, got == tc.want && d.Action.ShortRuns == tc.runs, "got %s, %d short runs, want %s, %d", got, d.Action.ShortRuns, tc.want, tc.runs)
		})
	}
}

// TestGuestThatEndedFirst checks that a guest which has ended by itself is not taken for one that Drover
// stops, while other parts of its server have yet to end.
func TestGuestThatEndedFirst(t *testing.T) {
	observed := policytest.Present(policy.StateStopping)
	observed.Server.Exit = policy.Exit{HasEnded: true, Code: 1}
	_, crashing := policytest.ShortRun(1, 2, 0)
	nothing := func(*policy.Input) {}
	drained := policytest.ChangeServer(observed, func(s *policy.Server) { s.Disruption = "the pod was evicted" })
	reported := policytest.WithServer("id-1", policy.StateStopping)
	for name, tc := range map[string]struct {
		spec     policy.Spec
		status   func(*policy.Input)
		want     string
		observed policy.Observed
	}{
		"drained later":        {policy.Spec{}, reported, "wait => Active Stopping", drained},
		"drained, and ended":   {policy.Spec{}, nothing, "wait Stop => Active Stopping", drained},
		"drained while it ran": {policy.Spec{}, policytest.WithServer("id-1", policy.StateRunning), "wait Stop => Active Stopping", drained},
		"to be restarted":      {policy.Spec{RestartedAt: policytest.T0}, nothing, "ensure Off Stop => Active Stopping", observed},
		"by itself":            {policy.Spec{}, nothing, "wait => Active Stopping", observed},
		"again":                {policy.Spec{}, crashing, "wait Start => Active Stopping", observed},
		"stopped by then":      {policy.Spec{Action: api.ActionStopped}, nothing, "ensure Off Stop => Active Stopping", observed},
		"on request":           {policy.Spec{}, policytest.WithOperation(api.OperationStop, 0, ""), "ensure Off Stop => Active Stopping", observed},
	} {
		t.Run(name, func(t *testing.T) {
			vm := policytest.ReportedVM().With(tc.status).Action(tc.spec.Action).RestartedAt(tc.spec.RestartedAt)
			got := summaryOf(policy.Decide(vm.Observing(tc.observed)))
			assert.True(t, got == tc.want, "got %s, want %s", got, tc.want)
		})
	}
}

// TestMessageOfAStopByOthers checks that a message says at once who ends a run that the spec wants, and not if
// Drover itself ends it.
func TestMessageOfAStopByOthers(t *testing.T) {
	observed := policytest.Present(policy.StateStopping)
	observed.Server.Disruption, observed.Server.Progress = "the pod was deleted", "the pod ends on node n1"
	for action, want := range map[api.Action]string{
		api.ActionActive: "the pod was deleted; the pod ends on node n1", api.ActionStopped: "the pod ends on node n1",
	} {
		got := policy.Decide(policytest.ReportedVM().Action(action).Observing(observed)).Status
		assert.True(t, got.Message == want && !got.Ready, "to be %s: %+v", action, got)
	}
}
