// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
)

// summaryOf formats a plan's policy as one line.
func summaryOf(d policy.Decision) string {
	words := []string{cmp.Or(string(d.Action.Step), "wait")}
	if d.Action.Step == policy.StepEnsure {
		words = append(words, string(d.Action.Power))
	}
	if d.Action.Operation != "" {
		words = append(words, string(d.Action.Operation))
	}
	words = append(words, "=>", string(d.Status.Phase), d.Status.Reason)
	for word, set := range map[string]bool{"ready": d.Status.Ready} {
		if set {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

var observations = map[string]policy.Observed{
	"gone":       policytest.Gone(),
	"pending":    policytest.Present(policy.StatePending),
	"starting":   policytest.Present(policy.StateStarting),
	"running":    policytest.Present(policy.StateRunning),
	"paused":     policytest.Present(policy.StatePaused),
	"stopping":   policytest.Present(policy.StateStopping),
	"never ran":  policytest.Present(policy.StateStopped),
	"ended 0":    policytest.Ended(0),
	"ended 1":    policytest.Ended(1),
	"restarting": policytest.Present(policy.StateRestarting),
	"removing":   policytest.Present(policy.StateRemoving),
}

// TestDecideMatrix has a row for every state, action and restart policy; a
// policy of "any" stands for all three.
func TestDecideMatrix(t *testing.T) {
	rows := []struct{ state, action, policy, want string }{
		{"gone", "active", "any", "ensure On Create => Creating Creating"},
		{"gone", "stopped", "any", "ensure Off Create => Creating Creating"},
		{"gone", "paused", "any", "ensure Paused Create => Creating Creating"},
		{"pending", "active", "any", "ensure On Create => Creating Creating"},
		{"pending", "stopped", "any", "ensure Off Create => Creating Creating"},
		{"pending", "paused", "any", "ensure Paused Create => Creating Creating"},
		{"starting", "active", "any", "wait Start => Creating Starting"},
		{"starting", "stopped", "any", "ensure Off Stop => Creating Stopping"},
		{"starting", "paused", "any", "wait Start => Creating Starting"},
		{"running", "active", "any", "wait => Active Running ready"},
		{"running", "stopped", "any", "ensure Off Stop => Active Stopping"},
		{"running", "paused", "any", "ensure Paused Pause => Active Updating"},
		{"paused", "active", "any", "ensure On Resume => Paused Starting"},
		{"paused", "stopped", "any", "ensure Off Stop => Paused Stopping"},
		{"paused", "paused", "any", "wait => Paused PausedAsAsked ready"},
		{"stopping", "active", "any", "wait Stop => Active Stopping"},
		{"stopping", "stopped", "any", "wait Stop => Active Stopping"},
		{"stopping", "paused", "any", "wait Stop => Active Stopping"},
		{"never ran", "active", "any", "ensure On Start => Creating Starting"},
		{"never ran", "stopped", "any", "wait => Stopped StoppedAsAsked ready"},
		{"never ran", "paused", "any", "ensure Paused Start => Creating Starting"},
		{"ended 0", "active", "Always", "ensure On Start => Creating Restarting"},
		{"ended 0", "active", "OnFailure", "wait => Stopped Completed ready"},
		{"ended 0", "active", "Never", "wait => Stopped Completed ready"},
		{"ended 0", "stopped", "any", "wait => Stopped StoppedAsAsked ready"},
		{"ended 0", "paused", "any", "ensure Paused Start => Creating Restarting"},
		{"ended 1", "active", "Always", "ensure On Start => Creating Restarting"},
		{"ended 1", "active", "OnFailure", "ensure On Start => Creating Restarting"},
		{"ended 1", "active", "Never", "wait => Failed Exited"},
		{"ended 1", "stopped", "any", "wait => Stopped StoppedAsAsked ready"},
		{"ended 1", "paused", "any", "ensure Paused Start => Creating Restarting"},
		{"restarting", "active", "any", "wait => Active Restarting"},
		{"restarting", "stopped", "any", "ensure Off Stop => Active Stopping"},
		{"restarting", "paused", "any", "ensure Paused Start => Active Starting"},
		{"removing", "active", "any", "wait Create => Creating Terminating"},
		{"removing", "stopped", "any", "wait Create => Creating Terminating"},
		{"removing", "paused", "any", "wait Create => Creating Terminating"},
	}
	policies := []string{"Always", "OnFailure", "Never"}
	done := map[string]bool{}
	for _, row := range rows {
		for _, restart := range policies {
			if row.policy != "any" && row.policy != restart {
				continue
			}
			name := fmt.Sprintf("%s/%s/%s", row.state, row.action, restart)
			t.Run(name, func(t *testing.T) {
				assert.Require(t, !done[name], "two rows")
				done[name] = true
				vm := policytest.ReportedVM().Action(api.Action(row.action)).RestartPolicy(api.RestartPolicy(restart))
				got := summaryOf(policy.Decide(vm.Observing(observations[row.state])))
				assert.True(t, got == row.want, "got  %s\nwant %s", got, row.want)
			})
		}
	}
	all := len(observations) * 3 * len(policies)
	assert.True(t, len(done) == all, "%d of %d combinations have a row", len(done), all)
}

// TestDecideDeletionMatrix has a row for every state and deletion policy.
func TestDecideDeletionMatrix(t *testing.T) {
	rows := map[string]struct{ remove, retain string }{
		"gone":       {"delete Delete => Terminating Terminating", "delete Delete => Terminating Terminating"},
		"pending":    {"delete Delete => Terminating Terminating", "delete Release => Terminating Releasing"},
		"starting":   {"ensure Off Stop => Terminating Stopping", "delete Release => Terminating Releasing"},
		"running":    {"ensure Off Stop => Terminating Stopping", "delete Release => Terminating Releasing"},
		"paused":     {"ensure Off Stop => Terminating Stopping", "delete Release => Terminating Releasing"},
		"stopping":   {"wait Stop => Terminating Stopping", "delete Release => Terminating Releasing"},
		"never ran":  {"delete Delete => Terminating Terminating", "delete Release => Terminating Releasing"},
		"ended 0":    {"delete Delete => Terminating Terminating", "delete Release => Terminating Releasing"},
		"ended 1":    {"delete Delete => Terminating Terminating", "delete Release => Terminating Releasing"},
		"restarting": {"delete Delete => Terminating Terminating", "delete Release => Terminating Releasing"},
		"removing":   {"wait Delete => Terminating Terminating", "wait Release => Terminating Releasing"},
	}
	for state, observed := range observations {
		t.Run(state, func(t *testing.T) {
			for deletion, want := range map[api.DeletionPolicy]string{api.DeletionDelete: rows[state].remove, api.DeletionRetain: rows[state].retain} {
				vm := policytest.ReportedVM().DeletedAt(policytest.T0).DeletionPolicy(deletion)
				got := summaryOf(policy.Decide(vm.Observing(observed)))
				assert.True(t, got == want, "%s:\ngot  %s\nwant %s", deletion, got, want)
			}
		})
	}
}

// restartFor puts a restart into the status that answers a restartedAt earlier than t0 by
// before.
func restartFor(before time.Duration, run string) func(*policy.Input) {
	return func(in *policy.Input) {
		policytest.WithOperation(api.OperationRestart, time.Second, run)(in)
		in.VM.Status.Operation.RestartedAt = policytest.T0.Add(-before)
	}
}

// stoppedOnRequest records that Drover stopped the run of present and ended.
func stoppedOnRequest(in *policy.Input) {
	in.VM.Status.Server = policy.ServerStatus{ID: "id-1", State: policy.StateStopped, StoppedRun: "run-1"}
}

func withReady(started time.Duration) func(*policy.Input) {
	return func(in *policy.Input) {
		in.VM.Status.StartTime, in.VM.Status.Ready = policytest.T0.Add(started), true
	}
}

func TestDecide(t *testing.T) {
	drained := policytest.ChangeServer(policytest.Present(policy.StateStopping), func(s *policy.Server) { s.Disruption = "the pod was evicted" })
	quickEnd, looping := policytest.ShortRun(3, 2, time.Second)
	quickEndLongAgo, _ := policytest.ShortRun(3, 2, time.Minute)
	back := policytest.Gone()
	back.BackSince = policytest.T0
	twins := policytest.Present(policy.StateRunning)
	twins.Duplicates = policy.ListOf("id-1", "id-2")
	unsettled := policytest.Gone()
	unsettled.SettlesAt = policytest.T0.Add(20 * time.Second)
	held := policytest.ChangeServer(policytest.Present(policy.StateRemoving), func(s *policy.Server) { s.Progress = "PersistentVolumeClaim a is held by b" })
	fetching := func(doing, err string) policy.Observed {
		return policytest.ChangeServer(policytest.Present(policy.StatePending), func(s *policy.Server) { s.ID, s.Progress, s.Error = "", doing, err })
	}
	tests := map[string]struct {
		vm       *policytest.Builder
		observed policy.Observed
		change   func(*policy.Input)
		want     string
		check    check
	}{
		"an outage is not shown before 5 s":        {vm: policytest.ReportedVM(), observed: policytest.Unknown(4 * time.Second), want: "wait =>  ", check: wantUnchanged(time.Second)},
		"an outage is shown after 5 s":             {vm: policytest.ReportedVM(), observed: policytest.Unknown(5 * time.Second), want: "wait => Unknown EngineUnavailable"},
		"an engine that refuses the leader":        {vm: policytest.ReportedVM(), observed: fencedOut(), want: "wait => Unknown Fenced", check: wantMessage("epoch 9 has acted")},
		"deletion, an engine that refuses":         {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: fencedOut(), want: "wait Delete => Terminating Fenced", check: wantBlocked("epoch 9 has acted")},
		"a deletion in an outage is blocked":       {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policytest.Unknown(5 * time.Second), want: "wait Delete => Terminating EngineUnavailable", check: wantBoth(wantBlocked("connection refused"), wantUnobserved)},
		"a deletion in a short outage waits":       {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policytest.Unknown(time.Second), want: "wait =>  ", check: wantUnchanged(4 * time.Second)},
		"another engine answers":                   {vm: policytest.ReportedVM(), observed: policy.Observed{Answer: policy.Gone, EngineID: "engine-2"}, want: "wait => Unknown EngineMismatch"},
		"deletion, another engine answers":         {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policy.Observed{Answer: policy.Gone, EngineID: "engine-2"}, want: "wait Delete => Terminating EngineMismatch", check: wantBoth(wantBlocked("remove the finalizer"), wantUnobserved)},
		"unknown driver":                           {vm: policytest.NewVM().Driver("xen"), change: withoutDriver, want: "wait => Failed UnknownDriver", check: wantBoth(wantStalled, wantBoth(wantMessage(`"xen"`), wantMessage("fake, docker")))},
		"bound to a driver that does not run here": {vm: policytest.ReportedVM(), change: withoutDriver, want: "wait => Unknown EngineMismatch", check: wantMessage("bound to fake/engine-1")},
		"a binding without a UID":                  {vm: policytest.ReportedVM().With(withoutUID), observed: policytest.Gone(), want: "wait => Unknown EngineMismatch", check: wantMessage("set the annotation cloudnative.tw/bound to <driver>/<engine id>/uid-1")},
		"deletion, a binding without a UID":        {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(withoutUID), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "wait Delete => Terminating EngineMismatch", check: wantBlocked("lacks a UID")},
		"no such driver, a binding without a UID":  {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(withoutUID), change: withoutDriver, want: "wait Delete => Terminating EngineMismatch", check: wantBlocked("lacks a UID")},
		"two servers of one UID":                   {vm: policytest.ReportedVM(), observed: twins, want: "wait => Failed Duplicate", check: wantMessage("2 servers carry the UID uid-1 (id-1, id-2)")},
		"two servers of one UID, deletion":         {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: twins, want: "wait Delete => Terminating Duplicate", check: wantBlocked("id-1, id-2")},

		"backoff is honoured":                      {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationCreate, 4, 3*time.Second)), observed: policytest.Gone(), want: "wait Create => Failed OperationFailed", check: wantWake(3 * time.Second)},
		"backoff ends":                             {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationCreate, 4, 0)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"a new spec ends backoff":                  {vm: policytest.ReportedVM().Generation(3).With(policytest.Failing(api.OperationCreate, 4, time.Minute)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"another server ends backoff":              {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationCreate, 4, time.Minute)), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready"},
		"a server that is gone ends backoff":       {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationUpdate, 4, time.Minute)).With(policytest.WithServer("id-1", policy.StateRunning)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"an engine that returns ends backoff":      {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationCreate, 4, time.Second)), observed: back, want: "ensure On Create => Creating Creating"},
		"a failing update waits, active":           {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationUpdate, 4, time.Second)).With(policytest.WithServer("id-1", policy.StateRunning)), observed: policytest.Present(policy.StateRunning), want: "wait Update => Active OperationFailed"},
		"a failing update is tried again":          {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationUpdate, 4, 0)).With(policytest.WithServer("id-1", policy.StateRunning)), observed: policytest.Present(policy.StateRunning), change: withPassedGeneration(1), want: "ensure On Update => Active Updating"},
		"a failing start waits":                    {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationStart, 1, time.Second)).With(policytest.WithServer("id-1", policy.StateStopped)), observed: policytest.Present(policy.StateStopped), want: "wait Start => Failed OperationFailed"},
		"a failing start after an end continues":   {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(policytest.Failing(api.OperationStart, 1, 0)).With(stoppedOnRequest), observed: policytest.Ended(1), want: "ensure On Start => Creating Starting"},
		"a failing pull waits":                     {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationCreate, 1, time.Second)).With(policytest.WithServer("", policy.StatePending)), observed: policytest.Gone(), want: "wait Create => Failed OperationFailed"},
		"backoff does not hold a deletion":         {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(policytest.Failing(api.OperationCreate, 9, time.Minute)), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating"},
		"a deletion that found nothing is the end": {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating"},
		"a release is the end":                     {vm: policytest.ReportedVM().DeletedAt(policytest.T0).DeletionPolicy(api.DeletionRetain), observed: policytest.Gone(), change: withDone(api.OperationRelease), want: "finish Delete => Terminating Terminating"},
		"stalled waits":                            {vm: policytest.ReportedVM().With(policytest.Refused), observed: policytest.Gone(), want: "wait Create => Failed Invalid"},
		"stalled ends with a new spec":             {vm: policytest.ReportedVM().With(policytest.Refused).Generation(3), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"stalled without an operation is over":     {vm: policytest.ReportedVM().With(policytest.Refused).With(func(in *policy.Input) { in.VM.Status.Operation = policy.Operation{} }), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"not bound yet":                            {vm: policytest.NewVM().Generation(1), observed: policytest.Gone(), want: "wait =>  ", check: wantUnchanged(policy.BindRetry)},
		"the first list is waited for": {vm: policytest.ReportedVM(), observed: policy.Observed{Cause: "not listed"}, want: "wait =>  ", check: func(t *testing.T, d policy.Decision) {
			assert.True(t, d.Status.Unchanged && d.WakeAt.IsZero(), "unchanged %v, wakes at %s", d.Status.Unchanged, d.WakeAt)
		}},
		"a failing proof that it is gone waits":        {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(policytest.Failing(api.OperationDelete, 2, time.Second)), observed: policytest.Gone(), want: "wait Delete => Terminating OperationFailed"},
		"an engine that returns ends a removal's wait": {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(policytest.Failing(api.OperationDelete, 2, time.Second)), observed: back, want: "delete Delete => Terminating Terminating"},
		"an unresponsive server is not ready":          {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Error = "inspect hangs" }), want: "wait => Active Unresponsive", check: wantMessage("inspect hangs")},
		"a driver names the reason of an error":        {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), loseVolume), want: "wait => Active VolumeDeleting", check: wantMessage("its disk goes")},
		"a driver names it for a frozen server":        {vm: policytest.ReportedVM().Action(api.ActionPaused), observed: policytest.ChangeServer(policytest.Present(policy.StatePaused), loseVolume), want: "wait => Paused VolumeDeleting", check: wantMessage("its disk goes")},
		"a server that may run is not started again":   {vm: policytest.ReportedVM(), observed: policytest.Lost(), want: "ensure On Start => Unknown Unresponsive", check: wantMessage("the node is gone")},
		"a server that may run is stopped":             {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: policytest.Lost(), want: "ensure Off Stop => Unknown Unresponsive", check: wantMessage("the node is gone")},
		"a change while the engine restarts it":        {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(policy.StateRestarting), want: "ensure On Update => Active Updating"},
		"a failing removal waits and says so":          {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(policytest.Failing(api.OperationDelete, 2, time.Second)).With(policytest.WithServer("id-1", policy.StateStopped)), observed: policytest.Ended(0), want: "wait Delete => Terminating OperationFailed", check: wantBoth(wantBlocked("boom; next try at 2026-01-02T03:04:06Z"), wantNextTry(time.Second))},
		"a failing removal is tried again":             {vm: policytest.ReportedVM().DeletedAt(policytest.T0).With(policytest.Failing(api.OperationDelete, 2, 0)), observed: policytest.Ended(0), want: "delete Delete => Terminating Terminating"},
		"a removal that took is waited for":            {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policytest.Ended(0), change: withDone(api.OperationDelete), want: "wait Delete => Terminating Terminating", check: wantWake(policy.RemovalPoll)},
		"a removal under way is not polled":            {vm: removing(time.Minute), observed: held, want: "wait Delete => Terminating DeletionHeld", check: wantBoth(wantWake(4*time.Second), wantNextTry(4*time.Second))},
		"a removal that is held for long":              {vm: removing(time.Hour + time.Second), observed: held, want: "wait Delete => Terminating DeletionHeld", check: wantBoth(wantBlocked("PersistentVolumeClaim a is held by b; checked again at"), wantWake(211*time.Second))},
		"a removal that just began is not blocked":     {vm: removing(29 * time.Second), observed: held, want: "wait Delete => Terminating Terminating", check: wantBoth(wantMessage("is held by b"), wantWake(3*time.Second))},
		"a removal that waits for a host":              {vm: removing(time.Minute), observed: policytest.ChangeServer(policytest.Present(policy.StateStopping), func(s *policy.Server) { s.Progress = "the pod ends on node a" }), change: withDone(api.OperationDelete), want: "wait Delete => Terminating DeletionHeld", check: wantBlocked("the pod ends on node a; checked again at")},
		"a removal of which the engine says nothing":   {vm: removing(time.Minute), observed: policytest.Present(policy.StateRemoving), want: "wait Delete => Terminating DeletionHeld", check: wantBlocked("the engine has yet to remove the server; checked again at 2026-01-02T03:04:09Z")},
		"a stop that failed before the deletion":       {vm: policytest.ReportedVM().Generation(3).DeletedAt(policytest.T0).With(policytest.Failing(api.OperationStop, 1, time.Minute)), observed: policytest.Present(policy.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: wantStopBy(30 * time.Second)},
		"a stop that failed waits for its next try":    {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-time.Second)).With(policytest.Failing(api.OperationStop, 2, time.Second)), observed: policytest.Present(policy.StateRunning), want: "wait Stop => Terminating OperationFailed", check: wantBoth(wantBlocked("boom"), wantNextTry(time.Second))},
		"a stop that fails is tried again":             {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-time.Second)).With(policytest.Failing(api.OperationStop, 1, 0)), observed: policytest.Present(policy.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: wantStopBy(29 * time.Second)},
		"a stop that fails waits for its next try":     {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-time.Second)).With(policytest.Failing(api.OperationStop, 1, time.Second)), observed: policytest.Present(policy.StateRunning), want: "wait Stop => Terminating OperationFailed", check: wantBlocked("boom")},
		"a failing stop no longer blocks deletion":     {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-30 * time.Second)).With(policytest.Failing(api.OperationStop, 5, time.Second)), observed: policytest.Present(policy.StateRunning), want: "delete Delete => Terminating Terminating"},
		"no binding and one driver did not say gone":   {vm: withoutBinding(), observed: policytest.Gone(), change: func(in *policy.Input) { in.DeletionBlocker = "driver docker has the server x" }, want: "wait => Terminating EngineMismatch", check: wantBlocked("driver docker has the server x")},
		"no binding: every driver is queried":          {vm: withoutBinding(), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"a binding: one driver is queried":             {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(false)},
		"no binding, never observed":                   {vm: withoutBinding().With(func(in *policy.Input) { in.VM.Status.ObservedGeneration = 0 }), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"no binding, and no such driver":               {vm: withoutBinding(), change: withoutDriver, want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"no such driver, and one has the server":       {vm: withoutBinding(), change: func(in *policy.Input) { in.Driver, in.DeletionBlocker = "", "driver docker has the server x" }, want: "wait => Terminating EngineMismatch", check: wantBlocked("driver docker has the server x")},
		"the grace period ends in a deletion":          {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-5 * time.Second)).GracePeriod(5), observed: policytest.Present(policy.StateStopping), want: "delete Delete => Terminating Terminating"},
		"a deletion waits for the grace period":        {vm: policytest.ReportedVM().DeletedAt(policytest.T0.Add(-4 * time.Second)).GracePeriod(5), observed: policytest.Present(policy.StateStopping), want: "wait Stop => Terminating Stopping", check: wantWake(time.Second)},
		"gone is uncertain after a timeout":            {vm: policytest.ReportedVM().DeletedAt(policytest.T0), observed: unsettled, want: "wait Delete => Terminating Terminating", check: wantBoth(wantBlocked("2026-01-02T03:04:25Z"), wantWake(20*time.Second))},
		"another driver may have the server":           {vm: withoutBinding(), observed: policytest.Gone(), change: func(in *policy.Input) { in.DeletionBlocker = "qemu does not answer" }, want: "wait => Terminating EngineMismatch", check: wantBoth(wantBlocked("qemu does not answer"), wantWake(30*time.Second))},
		"a server that is gone is to be kept":          {vm: policytest.ReportedVM().DeletedAt(policytest.T0).DeletionPolicy(api.DeletionRetain), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating", check: wantRetain(true)},
		"a server that is gone is not to be kept":      {vm: policytest.ReportedVM().DeletedAt(policytest.T0).DeletionPolicy(api.DeletionDelete), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating", check: wantRetain(false)},

		"a fetch continues":                    {vm: policytest.ReportedVM(), observed: fetching("pulling: 3 %", ""), want: "wait Create => Creating Fetching", check: wantMessage("pulling: 3 %")},
		"a fetch that was begun just now":      {vm: policytest.ReportedVM().Generation(3), observed: fetching("pulling", ""), change: withPassedGeneration(3), want: "wait Create => Creating Fetching"},
		"a fetch for an old spec":              {vm: policytest.ReportedVM().Generation(3), observed: fetching("pulling", ""), want: "ensure On Create => Creating Creating"},
		"a fetch that has ended":               {vm: policytest.ReportedVM(), observed: fetching("", ""), want: "ensure On Create => Creating Creating"},
		"a fetch that failed":                  {vm: policytest.ReportedVM(), observed: fetching("", "no such image"), want: "ensure On Create => Creating Creating"},
		"a stop is forced":                     {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).With(policytest.WithOperation(api.OperationStop, 5*time.Second, "")), observed: policytest.Present(policy.StateStopping), want: "ensure Off Stop => Active Stopping", check: wantStopBy(0)},
		"a stop is not forced yet":             {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).With(policytest.WithOperation(api.OperationStop, 4*time.Second, "")), observed: policytest.Present(policy.StateStopping), want: "wait Stop => Active Stopping", check: wantWake(time.Second)},
		"a stop whose signal got lost":         {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).With(policytest.WithOperation(api.OperationStop, 4*time.Second, "")), observed: policytest.Present(policy.StateRunning), want: "ensure Off Stop => Active Stopping", check: wantStopBy(time.Second)},
		"started after a stop, and ended":      {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(stoppedOnRequest), observed: policytest.ChangeServer(policytest.Ended(0), func(s *policy.Server) { s.Run = "run-2" }), want: "wait => Stopped Completed ready"},
		"stopped by us and active again":       {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).With(stoppedOnRequest), observed: policytest.Ended(0), want: "ensure On Start => Creating Starting"},
		"stopping was under way, active again": {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).With(policytest.WithOperation(api.OperationStop, time.Second, "")), observed: policytest.Ended(0), want: "ensure On Start => Creating Starting"},
		"a completed VM is so after a change":  {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).With(policytest.WithServer("id-1", policy.StateStopped)), observed: policytest.Ended(0), want: "wait => Stopped Completed ready"},

		"quick ends: the first is started at once": {vm: policytest.ReportedVM(), observed: quickEnd, want: "ensure On Start => Creating Restarting"},
		"quick ends: the next ones wait":           {vm: policytest.ReportedVM().With(looping), observed: quickEnd, want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"quick ends: the wait is over":             {vm: policytest.ReportedVM().With(looping), observed: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},
		"quick ends: counted until stable":         {vm: policytest.ReportedVM().With(looping), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.StartedAt = policytest.T0.Add(-time.Second) }), want: "wait Start => Active Running ready", check: wantWake(9 * time.Second)},
		"quick ends: forgotten when stable":        {vm: policytest.ReportedVM().With(looping), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready"},
		"quick ends: the wait is not a hold":       {vm: policytest.ReportedVM().With(policytest.Failing(api.OperationStart, 2, time.Second)).With(func(in *policy.Input) { in.VM.Status.Operation.Failure = api.FailureExited }).With(policytest.WithServer("id-1", policy.StateStopped)), observed: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},

		"a changed spec is passed to the driver":              {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(policy.StateRunning), want: "ensure On Update => Active Updating"},
		"a changed spec is passed to the driver, stopped":     {vm: policytest.ReportedVM().Generation(3).Action(api.ActionStopped), observed: policytest.Ended(0), want: "ensure Off Update => Creating Updating"},
		"a changed spec is passed to the driver, paused":      {vm: policytest.ReportedVM().Generation(3).Action(api.ActionPaused), observed: policytest.Present(policy.StatePaused), want: "ensure Paused Update => Paused Updating"},
		"memory changed by hand":                              {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Applied.MemoryBytes = 1 }), want: "ensure On Update => Active Updating"},
		"cpu changed by hand":                                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Applied.CPUMilli = 1 }), want: "ensure On Update => Active Updating"},
		"what waits for a restart is not tried on and on":     {vm: policytest.ReportedVM().With(policytest.PendingRestart), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Applied.CPUMilli = 1 }), change: withDone(api.OperationUpdate), want: "wait => Active ChangePending", check: wantMessage("image: applied at the next restart")},
		"what waits for a restart is remembered":              {vm: policytest.ReportedVM().With(policytest.PendingRestart), observed: policytest.Present(policy.StateRunning), want: "wait => Active ChangePending", check: wantMessage("image: applied at the next restart")},
		"what waits for a restart, paused":                    {vm: policytest.ReportedVM().Action(api.ActionPaused).With(policytest.PendingRestart), observed: policytest.Present(policy.StatePaused), want: "wait => Paused ChangePending", check: wantMessage("set spec.action to active first")},
		"what waited is passed again after a restart":         {vm: policytest.ReportedVM().With(policytest.PendingRestart), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.StartedAt = policytest.T0 }), want: "ensure On Update => Active Updating"},
		"what waited is done when the driver lists nothing":   {vm: policytest.ReportedVM(), observed: policytest.Present(policy.StateRunning), change: withDone(api.OperationUpdate), want: "wait => Active Running ready"},
		"a guest that boots is not ready":                     {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.IsBooting = true }), want: "wait => Active Booting", check: wantMessage("the guest boots")},
		"a probe that does not answer prevents Ready":         {vm: policytest.ReportedVM(), observed: policytest.Present(policy.StateRunning), change: func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true, Message: "refused"} }, want: "wait => Active ProbeFailing", check: wantMessage("refused")},
		"a probe that answers":                                {vm: policytest.ReportedVM(), observed: policytest.Present(policy.StateRunning), change: func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true, OK: true} }, want: "wait => Active Running ready"},
		"the engine restarts it and says why":                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRestarting), func(s *policy.Server) { s.Exit = policy.Exit{HasEnded: true, Code: 137, Reason: "OOMKilled"} }), want: "wait => Active Restarting", check: wantMessage("code 137 (OOMKilled)")},
		"an exit without a better reason":                     {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(3), func(s *policy.Server) { s.Exit.Reason = "Error" }), want: "wait => Failed Exited", check: wantMessage("the server ended with code 3")},
		"exited under Never is final":                         {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.Ended(3), want: "wait => Failed Exited", check: wantStalled},
		"ended by the host's shutdown, Never":                 {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(0), func(s *policy.Server) { s.Exit.ByHost = true }), want: "ensure On Start => Creating Restarting"},
		"ended by the host's shutdown, to be off":             {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: policytest.ChangeServer(policytest.Ended(0), func(s *policy.Server) { s.Exit.ByHost = true }), want: "wait => Stopped StoppedAsAsked ready"},
		"a run that its host refused, Never":                  {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: endedAs(1, "Rejected"), change: withoutRun, want: "ensure On Start => Creating Restarting", check: wantMessage("the server ended with code 1 (Rejected)")},
		"a run that its host refuses after a crash":           {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(lastRun("run-1")), observed: endedAs(1, "Rejected"), change: withoutRun, want: "wait => Failed Exited", check: wantStalled},
		"a run that another process has seen":                 {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(lastRun("run-0")), observed: endedAs(1, "Rejected"), change: withoutRun, want: "ensure On Start => Creating Restarting"},
		"ended by a drain, Never":                             {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(6), func(s *policy.Server) { s.Exit.Reason, s.Exit.ByHost = "Forced", true }), want: "ensure On Start => Creating Restarting"},
		"a host that is lost":                                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Error, s.HostLost = "node n1 does not report", true }), want: "wait => Unknown Unresponsive", check: wantMessage("node n1 does not report")},
		"a drain keeps its grace period":                      {vm: policytest.ReportedVM().With(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: drained, want: "wait Stop => Active Stopping", check: wantEndedByOthers(true)},
		"a drain of a server to stop is forced":               {vm: policytest.ReportedVM().Action(api.ActionStopped).With(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: drained, want: "ensure Off Stop => Active Stopping", check: wantEndedByOthers(false)},
		"a drain of a server to restart is forced":            {vm: policytest.ReportedVM().With(policytest.WithOperation(api.OperationRestart, time.Hour, "run-1")), observed: drained, want: "ensure On Restart => Active Stopping", check: wantEndedByOthers(false)},
		"a stop by hand is forced":                            {vm: policytest.ReportedVM().With(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: policytest.Present(policy.StateStopping), want: "ensure Off Stop => Active Stopping"},
		"the engine restarts what its guest has ended":        {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateRestarting), func(s *policy.Server) { s.Exit = policy.Exit{HasEnded: true} }), want: "wait => Active Restarting", check: wantMessage("ended by itself with code 0")},
		"a run that never began, OnFailure":                   {vm: policytest.ReportedVM().RestartPolicy(api.RestartOnFailure), observed: endedAs(0, "NeverRan"), change: withoutRun, want: "ensure On Start => Creating Restarting", check: wantMessage("the server was removed before it ran")},
		"a guest without a disk, Never":                       {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: endedAs(7, "NotStarted"), want: "ensure On Start => Creating Restarting"},
		"a guest without a disk, again and again":             {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(looping), observed: policytest.ChangeServer(quickEnd, func(s *policy.Server) { s.Exit.NeverRan, s.Exit.StartFailed = true, true }), want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a guest without a disk, to be paused, again":         {vm: policytest.ReportedVM().Action(api.ActionPaused).With(looping), observed: policytest.ChangeServer(quickEnd, func(s *policy.Server) { s.Exit.NeverRan, s.Exit.StartFailed = true, true }), want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a host that refuses it again, at an unknown time":    {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).With(looping), observed: policytest.ChangeServer(quickEnd, func(s *policy.Server) { s.Exit.NeverRan, s.StartedAt = true, time.Time{} }), change: withoutRun, want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a guest without a disk, and a changed spec":          {vm: policytest.ReportedVM().Generation(3).With(looping), observed: policytest.ChangeServer(quickEnd, func(s *policy.Server) { s.Exit.NeverRan, s.Exit.StartFailed = true, true }), want: "ensure On Start => Creating Restarting"},
		"a start that waits gets a changed spec":              {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(policy.StateStarting), want: "ensure On Start => Creating Starting"},
		"a refused image":                                     {vm: policytest.ReportedVM().With(policytest.RefusedImage), observed: policytest.Present(policy.StateRunning), want: "wait => Active ImageImmutable", check: wantStalled},
		"a refused image says why":                            {vm: policytest.ReportedVM().With(policytest.RefusedImage), observed: policytest.Present(policy.StateRunning), want: "wait => Active ImageImmutable", check: wantMessage("image is b: the disk stands on a")},
		"a run that is complete says how it ended":            {vm: policytest.ReportedVM().RestartPolicy(api.RestartOnFailure), observed: policytest.Ended(0), want: "wait => Stopped Completed ready", check: wantMessage("the server ended by itself with code 0")},
		"a note of a server that runs":                        {vm: policytest.ReportedVM(), observed: withNote(policy.StateRunning), want: "wait => Active Running ready", check: wantMessage("a note")},
		"a note of a server that is off":                      {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: withNote(policy.StateStopped), want: "wait => Stopped StoppedAsAsked ready", check: wantMessage("a note")},
		"a note of a server that is paused":                   {vm: policytest.ReportedVM().Action(api.ActionPaused), observed: withNote(policy.StatePaused), want: "wait => Paused PausedAsAsked ready", check: wantMessage("a note")},
		"a refused image, off":                                {vm: policytest.ReportedVM().Action(api.ActionStopped).With(policytest.RefusedImage), observed: policytest.Ended(0), want: "wait => Stopped ImageImmutable", check: wantStalled},
		"a refused image blocks nothing":                      {vm: policytest.ReportedVM().Action(api.ActionStopped).With(policytest.RefusedImage), observed: policytest.Present(policy.StateRunning), want: "ensure Off Stop => Active Stopping"},
		"the default action is active, the default is Always": {vm: policytest.ReportedVM(), observed: policytest.Ended(0), want: "ensure On Start => Creating Restarting"},

		"a restart is requested":                     {vm: policytest.ReportedVM().RestartedAt(policytest.T0), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart of a server that ended":           {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).RestartedAt(policytest.T0), observed: policytest.Ended(0), want: "ensure On Restart => Creating Restarting", check: wantRestart(true)},
		"a restartedAt with a fraction, once":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0.Add(123 * time.Millisecond)).With(func(in *policy.Input) { in.VM.Status.RestartedAt = policytest.T0 }), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restartedAt of zero requests none":        {vm: policytest.ReportedVM().RestartedAt(time.Time{}), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a fraction does not restart during one":     {vm: policytest.ReportedVM().RestartedAt(policytest.T0.Add(123 * time.Millisecond)).With(restartFor(0, "run-1")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restartedAt at creation requests none":    {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(func(in *policy.Input) { in.VM.Status.ObservedGeneration = 0 }), observed: policytest.Present(policy.StateRunning), want: "ensure On Update => Active Updating", check: wantRestartHandled},
		"a restart that was written down is done":    {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restart is not done twice":                {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restart requested while it is under way":  {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(time.Second, "run-1")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart requested after its end":          {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(time.Second, "run-0")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart that answers the requested value": {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(0, "run-1")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restart that has answered it":             {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(0, "run-0")), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restart while the run is not known":       {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(policy.StateStopped), func(s *policy.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting", check: wantRestart(false)},
		"a restart whose new run boots":              {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Present(policy.StateStarting), want: "wait Start => Creating Starting", check: wantRestartHandled},
		"a start for which there is no node":         {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(policy.StateStarting), func(s *policy.Server) { s.IsUnschedulable, s.Progress = true, "0/2 nodes" }), want: "wait Start => Creating Unschedulable", check: wantMessage("0/2 nodes")},
		"a restart starts what it stopped":           {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Ended(0), want: "ensure On Restart => Creating Restarting", check: wantRestart(false)},
		"a restart waits for the stop":               {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Present(policy.StateStopping), want: "wait Restart => Active Stopping", check: wantWake(29 * time.Second)},
		"a restart forces the stop":                  {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Minute, "run-1")), observed: policytest.Present(policy.StateStopping), want: "ensure On Restart => Active Stopping", check: wantRestart(false)},
		"no restart right after the creation":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0), observed: policytest.Present(policy.StateRunning), change: withDone(api.OperationCreate), want: "wait => Active Running ready"},
		"no restart while it must be off":            {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Action(api.ActionStopped), observed: policytest.Ended(0), want: "wait => Stopped StoppedAsAsked ready", check: wantRestartHandled},
		"no restart while it must be paused":         {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Action(api.ActionPaused), observed: policytest.Present(policy.StatePaused), want: "wait => Paused PausedAsAsked ready", check: wantRestartHandled},
		"a request during a fetch is recorded":       {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(restartFor(time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Progress = "pulling" }), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a fetch that no start has begun":            {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *policy.Server) { s.Progress = "pulling" }), want: "ensure On Start => Creating Restarting"},
		"a stop is forced, active again":             {vm: policytest.ReportedVM().GracePeriod(5).With(policytest.WithOperation(api.OperationStop, 5*time.Second, "")), observed: policytest.Present(policy.StateStopping), want: "ensure Off Stop => Active Stopping"},
		"a restart that waits for an image":          {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Progress = "pulling" }), want: "wait Restart => Active Fetching", check: wantMessage("pulling")},
		"a start that waits for an image":            {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *policy.Server) { s.Progress = "pulling" }), change: withDone(api.OperationStart), want: "wait Start => Creating Fetching"},
		"a start that waits for the last run":        {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *policy.Server) { s.Progress, s.IsLeaving = "it goes", true }), change: withDone(api.OperationStart), want: "wait Start => Creating Restarting", check: wantMessage("it goes")},
		"a start after an image was fetched":         {vm: policytest.ReportedVM().With(policytest.WithOperation(api.OperationStart, time.Second, "")), observed: policytest.Ended(1), want: "ensure On Start => Creating Restarting"},
		"a restart whose image took its time":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Hour, "run-1")), observed: policytest.Present(policy.StateRunning), want: "ensure On Restart => Active Restarting", check: wantStopBy(30 * time.Second)},
		"a restart whose new run has ended":          {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Ended(0), want: "wait => Stopped Completed ready", check: wantRestartHandled},
		"a restart that ends no run":                 {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(policytest.WithOperation(api.OperationRestart, time.Second, "")), observed: policytest.ChangeServer(policytest.Present(policy.StateStopped), func(s *policy.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting"},
		"a probe not completed yet, ready before":    {vm: policytest.ReportedVM().With(withReady(-time.Hour)), observed: policytest.Present(policy.StateRunning), change: func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true} }, want: "wait => Active Running ready"},
		"a probe that fails, ready before":           {vm: policytest.ReportedVM().With(withReady(-time.Hour)), observed: policytest.Present(policy.StateRunning), change: func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true, Completed: true} }, want: "wait => Active ProbeFailing"},
		"a probe not completed yet, another run":     {vm: policytest.ReportedVM().With(withReady(-2 * time.Hour)), observed: policytest.Present(policy.StateRunning), change: func(in *policy.Input) { in.Probe = policy.ProbeResult{Wanted: true} }, want: "wait => Active ProbeFailing"},
		"a restart that was handled":                 {vm: policytest.ReportedVM().RestartedAt(policytest.T0).With(func(in *policy.Input) { in.VM.Status.RestartedAt = policytest.T0 }), observed: policytest.Present(policy.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := tc.vm.Observing(tc.observed)
			if tc.change != nil {
				tc.change(&in)
			}
			d := policy.Decide(in)
			got := summaryOf(d)
			assert.True(t, got == tc.want, "got  %s\nwant %s", got, tc.want)
			if tc.check != nil {
				tc.check(t, d)
			}
		})
	}
}

func withoutDriver(in *policy.Input) { in.Driver = "" }

func withPassedGeneration(generation int64) func(*policy.Input) {
	return func(in *policy.Input) { in.PassedGeneration = generation }
}

func withDone(o api.OperationType) func(*policy.Input) { return func(in *policy.Input) { in.Done = o } }

// A check looks at what the summary of a decision leaves out.
type check = func(*testing.T, policy.Decision)

// want checks one part of a decision.
func want[T comparable](description string, part func(policy.Decision) T, wanted T) check {
	return func(t *testing.T, d policy.Decision) {
		t.Helper()
		got := part(d)
		assert.True(t, got == wanted, "%s: got %v, want %v", description, got, wanted)
	}
}

func wantBoth(first, second check) check {
	return func(t *testing.T, d policy.Decision) {
		t.Helper()
		first(t, d)
		second(t, d)
	}
}

// loseVolume has the driver report that a disk goes with the run.
func loseVolume(s *policy.Server) { s.Error, s.ErrorReason = "its disk goes", "VolumeDeleting" }

func wantMessage(text string) check {
	return func(t *testing.T, d policy.Decision) {
		t.Helper()
		assert.True(t, strings.Contains(d.Status.Message, text), "message %q lacks %q", d.Status.Message, text)
	}
}

func wantBlocked(text string) check {
	return wantBoth(wantMessage(text), want("blocked", func(d policy.Decision) bool { return d.Status.Blocked }, true))
}

var (
	wantUnobserved     = want("the engine was not queried", func(d policy.Decision) bool { return d.Status.Unobserved }, true)
	wantRestartHandled = want("spec.restartedAt is handled", func(d policy.Decision) bool { return d.Status.RestartHandled }, true)
	wantStalled        = wantBoth(want("stalled", func(d policy.Decision) bool { return d.Status.Stalled }, true),
		want("ready", func(d policy.Decision) bool { return d.Status.Ready }, false))
)

// wantUnchanged wants that the status is left as it is.
func wantUnchanged(wake time.Duration) check {
	return wantBoth(wantWake(wake), want("the status is left", func(d policy.Decision) bool { return d.Status.Unchanged }, true))
}

func wantRetain(release bool) check {
	return want("releases the server", func(d policy.Decision) bool { return d.Action.Retain }, release)
}

func wantAllDrivers(all bool) check {
	return want("queries every driver", func(d policy.Decision) bool { return d.Action.AllDrivers }, all)
}

func wantWake(after time.Duration) check {
	return want("wakes after", func(d policy.Decision) time.Duration { return d.WakeAt.Sub(policytest.T0) }, after)
}

func wantEndedByOthers(intent bool) check {
	return want("is ended by others", func(d policy.Decision) bool { return d.Action.EndedByOthers }, intent)
}

func wantStopBy(after time.Duration) check {
	return want("stops by", func(d policy.Decision) time.Duration { return d.Action.StopBy.Sub(policytest.T0) }, after)
}

// wantNextTry wants that an operation is tried again after a time, and no earlier pass.
func wantNextTry(after time.Duration) check {
	return wantBoth(wantWake(after), want("tries again after", func(d policy.Decision) time.Duration { return d.NextTry.Sub(policytest.T0) }, after))
}

func wantRestart(intent bool) check {
	type restart struct {
		intent  bool
		endRun  string
		handled bool
	}
	return want("restart", func(d policy.Decision) restart {
		return restart{d.Action.RecordFirst, d.Action.EndRun, d.Status.RestartHandled}
	}, restart{intent, "run-1", false})
}

// withNote observes a server with a note by its driver.
func withNote(state policy.State) policy.Observed {
	return policytest.ChangeServer(policytest.Present(state), func(s *policy.Server) { s.Note = "a note" })
}

// withoutRun has this process never have seen the server run.
func withoutRun(in *policy.Input) { in.Since.Run = time.Time{} }

// lastRun puts a run into the status.
func lastRun(run string) func(*policy.Input) {
	return func(in *policy.Input) { in.VM.Status.Server = policy.ServerStatus{ID: "id-1", Run: run} }
}

// endedAs observes a server whose run has ended for a reason, without a guest that ran.
func endedAs(code int, reason string) policy.Observed {
	return policytest.ChangeServer(policytest.Ended(code), func(s *policy.Server) {
		s.Exit.Reason, s.Exit.NeverRan, s.Exit.StartFailed = reason, true, reason == "NotStarted"
	})
}

func fencedOut() policy.Observed {
	o := policytest.Unknown(0)
	o.Fenced, o.Cause = true, "epoch 9 has acted"
	return o
}

// withoutUID removes the UID from the binding.
func withoutUID(in *policy.Input) { in.VM.Binding.UID, in.VM.IsBound = "", false }

// removing is a VM under deletion, whose server is being removed for some time.
func removing(ago time.Duration) *policytest.Builder {
	return policytest.ReportedVM().DeletedAt(policytest.T0.Add(-2 * ago)).With(policytest.WithOperation(api.OperationDelete, ago, ""))
}

// withoutBinding is a VM under deletion whose binding is lost.
func withoutBinding() *policytest.Builder {
	return policytest.ReportedVM().DeletedAt(policytest.T0).With(func(in *policy.Input) { in.VM.Binding, in.VM.IsBound = api.Binding{}, false })
}

// withOtherWording replaces all human-readable text of an input.
func withOtherWording(in policy.Input) policy.Input {
	if in.VM.Status.Operation.Type != "" {
		in.VM.Status.Operation.Reason, in.VM.Status.Operation.LastError = "Reworded", "reworded"
	}
	if in.VM.Status.RefusedField.Field != "" {
		in.VM.Status.RefusedField.Reason, in.VM.Status.RefusedField.Message = "Reworded", "reworded"
	}
	return in
}

// TestWordingDecidesNothing checks that decide does not depend on reasons, messages
// and conditions, for every state, action, policy and status.
func TestWordingDecidesNothing(t *testing.T) {
	_, looping := policytest.ShortRun(1, 2, time.Second)
	statuses := map[string]func(*policy.Input){
		"at rest": func(*policy.Input) {},
		"failing": policytest.Failing(api.OperationUpdate, 2, time.Second),
		"exhausted": func(in *policy.Input) {
			policytest.Failing(api.OperationCreate, 2, time.Second)(in)
			in.VM.Status.Operation.Failure = api.FailureExhausted
		},
		"refused":        policytest.Refused,
		"crashing":       looping,
		"off on request": stoppedOnRequest,
		"waits":          policytest.PendingRestart,
		"image refused":  policytest.RefusedImage,
		"restarting":     policytest.WithOperation(api.OperationRestart, time.Second, "run-1"),
		"stopping":       policytest.WithOperation(api.OperationStop, time.Second, ""),
	}
	for state, observed := range observations {
		for kind, status := range statuses {
			for _, action := range []api.Action{api.ActionActive, api.ActionStopped, api.ActionPaused} {
				for _, restart := range []api.RestartPolicy{api.RestartAlways, api.RestartOnFailure, api.RestartNever} {
					for _, deleted := range []bool{false, true} {
						b := policytest.ReportedVM().Action(action).RestartPolicy(restart).With(status)
						if deleted {
							b = b.DeletedAt(policytest.T0.Add(-time.Second))
						}
						in := b.Observing(observed)
						got, want := policy.Decide(withOtherWording(in)), policy.Decide(in)
						g, w := withoutWording(got), withoutWording(want)
						assert.True(t, g == w, "%s, %s, %s, %s, deleted %v:\ngot  %s\nwant %s", state, kind, action, restart, deleted, g, w)
					}
				}
			}
		}
	}
}

// withoutWording formats a plan without its human-readable text.
func withoutWording(d policy.Decision) string {
	d.Status.Reason, d.Status.Message, d.Status.Refused = "", "", api.RefusedField{}
	return fmt.Sprintf("%+v", d)
}

func TestEarliest(t *testing.T) {
	later := policytest.T0.Add(time.Second)
	for name, tc := range map[string]struct{ a, b, want time.Time }{
		"first":  {policytest.T0, later, policytest.T0},
		"second": {later, policytest.T0, policytest.T0},
		"unset":  {later, time.Time{}, later},
	} {
		t.Run(name, func(t *testing.T) {
			got := policy.Earliest(tc.a, tc.b)
			assert.True(t, got.Equal(tc.want), "got %s", got)
		})
	}
}
