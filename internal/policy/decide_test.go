// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/framework"
)

func inputOf(vm *api.VirtualMachine, observed inventory.Observation) Input {
	return Input{VM: vm, Observed: observed, Now: policytest.T0, Since: sinceWritten(vm, observed), PassedGeneration: vm.Status.ObservedGeneration, Driver: "fake", Drivers: []string{"fake", "docker"}}
}

// sinceWritten uses the times in an object and a server as the instants at which
// they were observed.
func sinceWritten(vm *api.VirtualMachine, observed inventory.Observation) (s Instants) {
	if at := vm.DeletionTimestamp; at != nil {
		s.Deletion = at.Time
	}
	if op := vm.Status.Operation; op != nil {
		s.Operation = op.StartedAt.Time
		if op.NextRetryTime != nil {
			s.Failure = op.NextRetryTime.Add(-Backoff(op.Attempts, op.Failure == api.FailureExhausted))
		}
	}
	s.Run = observed.Server.StartedAt
	if observed.Server.Exit != nil {
		s.Exit = observed.Server.Exit.At
	}
	return s
}

// summaryOf formats a plan's policy as one line.
func summaryOf(d Decision) string {
	steps := map[Step]string{StepNone: "wait", StepEnsure: "ensure", StepDelete: "delete", StepFinish: "finish"}
	words := []string{steps[d.Action.Step]}
	if d.Action.Step == StepEnsure {
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

var observations = map[string]inventory.Observation{
	"gone":       policytest.Gone(),
	"pending":    policytest.Present(driver.StatePending),
	"starting":   policytest.Present(driver.StateStarting),
	"running":    policytest.Present(driver.StateRunning),
	"paused":     policytest.Present(driver.StatePaused),
	"stopping":   policytest.Present(driver.StateStopping),
	"never ran":  policytest.Present(driver.StateStopped),
	"ended 0":    policytest.Ended(0),
	"ended 1":    policytest.Ended(1),
	"restarting": policytest.Present(driver.StateRestarting),
	"removing":   policytest.Present(driver.StateRemoving),
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
		{"ended 0", "paused", "any", "ensure Paused Start => Creating Starting"},
		{"ended 1", "active", "Always", "ensure On Start => Creating Restarting"},
		{"ended 1", "active", "OnFailure", "ensure On Start => Creating Restarting"},
		{"ended 1", "active", "Never", "wait => Failed Exited"},
		{"ended 1", "stopped", "any", "wait => Stopped StoppedAsAsked ready"},
		{"ended 1", "paused", "any", "ensure Paused Start => Creating Starting"},
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
		for _, policy := range policies {
			if row.policy != "any" && row.policy != policy {
				continue
			}
			name := fmt.Sprintf("%s/%s/%s", row.state, row.action, policy)
			t.Run(name, func(t *testing.T) {
				if done[name] {
					t.Fatal("two rows")
				}
				done[name] = true
				vm := policytest.ReportedVM().Action(api.Action(row.action)).RestartPolicy(api.RestartPolicy(policy)).Obj()
				if got := summaryOf(Decide(inputOf(vm, observations[row.state]))); got != row.want {
					t.Errorf("got  %s\nwant %s", got, row.want)
				}
			})
		}
	}
	if all := len(observations) * 3 * len(policies); len(done) != all {
		t.Errorf("%d of %d combinations have a row", len(done), all)
	}
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
			for policy, want := range map[api.DeletionPolicy]string{api.DeletionDelete: rows[state].remove, api.DeletionRetain: rows[state].retain} {
				vm := policytest.ReportedVM().DeletionTimestamp(policytest.T0).DeletionPolicy(policy).Obj()
				if got := summaryOf(Decide(inputOf(vm, observed))); got != want {
					t.Errorf("%s:\ngot  %s\nwant %s", policy, got, want)
				}
			}
		})
	}
}

// restartFor puts a restart into the status that answers a restartedAt of before t0
// by before.
func restartFor(before time.Duration, run string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		policytest.WithOperation(api.OperationRestart, time.Second, run)(s)
		s.Operation.RestartedAt = &metav1.Time{Time: policytest.T0.Add(-before)}
	}
}

// stoppedOnRequest records that Drover stopped the run of present and ended.
func stoppedOnRequest(s *api.VirtualMachineStatus) {
	s.Server = &api.ServerStatus{ID: "id-1", State: string(driver.StateStopped), StoppedRun: "run-1"}
}

func withReady(started time.Duration) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		at := metav1.NewMicroTime(policytest.T0.Add(started))
		s.StartTime = &at
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: api.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"})
	}
}

func TestDecide(t *testing.T) {
	drained := policytest.ChangeServer(policytest.Present(driver.StateStopping), func(s *driver.Server) { s.Disruption = "the pod was evicted" })
	quickEnd, looping := policytest.ShortRun(3, 2, time.Second)
	quickEndLongAgo, _ := policytest.ShortRun(3, 2, time.Minute)
	back := policytest.Gone()
	back.BackSince = policytest.T0
	twins := policytest.Present(driver.StateRunning)
	twins.Duplicates = []string{"id-1", "id-2"}
	unsettled := policytest.Gone()
	unsettled.SettlesAt = policytest.T0.Add(20 * time.Second)
	fetching := func(doing string, err error) inventory.Observation {
		return policytest.ChangeServer(policytest.Present(driver.StatePending), func(s *driver.Server) { s.ID, s.Progress, s.Err = "", doing, err })
	}
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		change   func(*Input)
		want     string
		check    check
	}{
		"an outage is not shown before 5 s":        {vm: policytest.ReportedVM(), observed: policytest.Unknown(4 * time.Second), want: "wait =>  ", check: wantUnchanged(time.Second)},
		"an outage is shown after 5 s":             {vm: policytest.ReportedVM(), observed: policytest.Unknown(5 * time.Second), want: "wait => Unknown EngineUnavailable"},
		"an engine that refuses the leader":        {vm: policytest.ReportedVM(), observed: fencedOut(), want: "wait => Unknown Fenced", check: wantMessage("epoch 9 has acted")},
		"deletion, an engine that refuses":         {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: fencedOut(), want: "wait Delete => Terminating Fenced", check: wantBlocked("epoch 9 has acted")},
		"a deletion in an outage is blocked":       {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: policytest.Unknown(5 * time.Second), want: "wait Delete => Terminating EngineUnavailable", check: wantBoth(wantBlocked("connection refused"), wantUnobserved)},
		"a deletion in a short outage waits":       {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: policytest.Unknown(time.Second), want: "wait =>  ", check: wantUnchanged(4 * time.Second)},
		"another engine answers":                   {vm: policytest.ReportedVM(), observed: inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, want: "wait => Unknown EngineMismatch"},
		"deletion, another engine answers":         {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, want: "wait Delete => Terminating EngineMismatch", check: wantBoth(wantBlocked("remove the finalizer"), wantUnobserved)},
		"unknown driver":                           {vm: framework.NewVM("vm").Driver("xen"), change: withoutDriver, want: "wait => Failed UnknownDriver", check: wantBoth(wantStalled, wantBoth(wantMessage(`"xen"`), wantMessage("fake, docker")))},
		"bound to a driver that does not run here": {vm: policytest.ReportedVM(), change: withoutDriver, want: "wait => Unknown EngineMismatch", check: wantMessage("bound to fake/engine-1")},
		"two servers of one UID":                   {vm: policytest.ReportedVM(), observed: twins, want: "wait => Failed Duplicate", check: wantMessage("2 servers carry the UID uid-1 (id-1, id-2)")},
		"two servers of one UID, deletion":         {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: twins, want: "wait Delete => Terminating Duplicate", check: wantBlocked("id-1, id-2")},

		"backoff is honoured":                      {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 4, 3*time.Second)), observed: policytest.Gone(), want: "wait Create => Failed OperationFailed", check: wantWake(3 * time.Second)},
		"backoff ends":                             {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 4, 0)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"a new spec ends backoff":                  {vm: policytest.ReportedVM().Generation(3).Status(policytest.Failing(api.OperationCreate, 4, time.Minute)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"another server ends backoff":              {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 4, time.Minute)), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready"},
		"a server that is gone ends backoff":       {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationUpdate, 4, time.Minute)).Status(policytest.WithServer("id-1", driver.StateRunning)), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"an engine that returns ends backoff":      {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 4, time.Second)), observed: back, want: "ensure On Create => Creating Creating"},
		"a failing update waits, active":           {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationUpdate, 4, time.Second)).Status(policytest.WithServer("id-1", driver.StateRunning)), observed: policytest.Present(driver.StateRunning), want: "wait Update => Active OperationFailed"},
		"a failing update is tried again":          {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationUpdate, 4, 0)).Status(policytest.WithServer("id-1", driver.StateRunning)), observed: policytest.Present(driver.StateRunning), change: withPassedGeneration(1), want: "ensure On Update => Active Updating"},
		"a failing start waits":                    {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationStart, 1, time.Second)).Status(policytest.WithServer("id-1", driver.StateStopped)), observed: policytest.Present(driver.StateStopped), want: "wait Start => Failed OperationFailed"},
		"a failing start after an end continues":   {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(policytest.Failing(api.OperationStart, 1, 0)).Status(stoppedOnRequest), observed: policytest.Ended(1), want: "ensure On Start => Creating Starting"},
		"a failing pull waits":                     {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationCreate, 1, time.Second)).Status(policytest.WithServer("", driver.StatePending)), observed: policytest.Gone(), want: "wait Create => Failed OperationFailed"},
		"backoff does not hold a deletion":         {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationCreate, 9, time.Minute)), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating"},
		"a deletion that found nothing is the end": {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating"},
		"a release is the end":                     {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).DeletionPolicy(api.DeletionRetain), observed: policytest.Gone(), change: withDone(api.OperationRelease), want: "finish Delete => Terminating Terminating"},
		"stalled waits":                            {vm: policytest.ReportedVM().Status(policytest.Refused), observed: policytest.Gone(), want: "wait Create => Failed Invalid"},
		"stalled ends with a new spec":             {vm: policytest.ReportedVM().Status(policytest.Refused).Generation(3), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"stalled without an operation is over":     {vm: policytest.ReportedVM().Status(policytest.Refused).Status(func(s *api.VirtualMachineStatus) { s.Operation = nil }), observed: policytest.Gone(), want: "ensure On Create => Creating Creating"},
		"not bound yet":                            {vm: framework.NewVM("vm").UID("uid-1").Generation(1), observed: policytest.Gone(), want: "wait =>  ", check: wantUnchanged(bindRetry)},
		"the first list is waited for": {vm: policytest.ReportedVM(), observed: inventory.Observation{Cause: errors.New("not listed")}, want: "wait =>  ", check: func(t *testing.T, d Decision) {
			if !d.Status.Unchanged || !d.WakeAt.IsZero() {
				t.Errorf("unchanged %v, wakes at %s", d.Status.Unchanged, d.WakeAt)
			}
		}},
		"a failing proof that it is gone waits":        {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationDelete, 2, time.Second)), observed: policytest.Gone(), want: "wait Delete => Terminating OperationFailed"},
		"an engine that returns ends a removal's wait": {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationDelete, 2, time.Second)), observed: back, want: "delete Delete => Terminating Terminating"},
		"an unresponsive server is not ready":          {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Err = errors.New("inspect hangs") }), want: "wait => Active Unresponsive", check: wantMessage("inspect hangs")},
		"a server that may run is not started again":   {vm: policytest.ReportedVM(), observed: policytest.Lost(), want: "ensure On Start => Unknown Unresponsive", check: wantMessage("the node is gone")},
		"a server that may run is stopped":             {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: policytest.Lost(), want: "ensure Off Stop => Unknown Unresponsive", check: wantMessage("the node is gone")},
		"a change while the engine restarts it":        {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(driver.StateRestarting), want: "ensure On Update => Active Updating"},
		"a failing removal waits and says so":          {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationDelete, 2, time.Second)).Status(policytest.WithServer("id-1", driver.StateStopped)), observed: policytest.Ended(0), want: "wait Delete => Terminating OperationFailed", check: wantBoth(wantBlocked("boom; next try at 2026-01-02T03:04:06Z"), wantNextTry(time.Second))},
		"a failing removal is tried again":             {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationDelete, 2, 0)), observed: policytest.Ended(0), want: "delete Delete => Terminating Terminating"},
		"a removal that took is waited for":            {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: policytest.Ended(0), change: withDone(api.OperationDelete), want: "wait Delete => Terminating Terminating", check: wantWake(removalPoll)},
		"a removal that waits for a host":              {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-time.Minute)), observed: policytest.Present(driver.StateStopping), change: withDone(api.OperationDelete), want: "wait Delete => Terminating Terminating", check: wantWake(DeletionCheckPeriod)},
		"a stop that failed before the deletion":       {vm: policytest.ReportedVM().Generation(3).DeletionTimestamp(policytest.T0).Status(policytest.Failing(api.OperationStop, 1, time.Minute)), observed: policytest.Present(driver.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: wantStopBy(30 * time.Second)},
		"a stop that failed waits for its next try":    {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-time.Second)).Status(policytest.Failing(api.OperationStop, 2, time.Second)), observed: policytest.Present(driver.StateRunning), want: "wait Stop => Terminating OperationFailed", check: wantBoth(wantBlocked("boom"), wantNextTry(time.Second))},
		"a stop that fails is tried again":             {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-time.Second)).Status(policytest.Failing(api.OperationStop, 1, 0)), observed: policytest.Present(driver.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: wantStopBy(29 * time.Second)},
		"a stop that fails waits for its next try":     {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-time.Second)).Status(policytest.Failing(api.OperationStop, 1, time.Second)), observed: policytest.Present(driver.StateRunning), want: "wait Stop => Terminating OperationFailed", check: wantBlocked("boom")},
		"a failing stop no longer blocks deletion":     {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-30 * time.Second)).Status(policytest.Failing(api.OperationStop, 5, time.Second)), observed: policytest.Present(driver.StateRunning), want: "delete Delete => Terminating Terminating"},
		"no binding and one driver did not say gone":   {vm: withoutBinding(), observed: policytest.Gone(), change: func(in *Input) { in.DeletionBlocker = "driver docker has the server x" }, want: "wait => Terminating EngineMismatch", check: wantBlocked("driver docker has the server x")},
		"no binding: every driver is queried":          {vm: withoutBinding(), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"a binding: one driver is queried":             {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(false)},
		"no binding, never observed":                   {vm: withoutBinding().Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 0 }), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"the binding of another object":                {vm: withoutBinding().Bound("fake/engine-2/uid-2"), observed: policytest.Gone(), change: withDone(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"that of another object, and no such driver":   {vm: withoutBinding().Bound("fake/engine-2/uid-2"), change: withoutDriver, want: "finish Delete => Terminating Terminating", check: wantAllDrivers(true)},
		"no such driver, and one has the server":       {vm: withoutBinding(), change: func(in *Input) { in.Driver, in.DeletionBlocker = "", "driver docker has the server x" }, want: "wait => Terminating EngineMismatch", check: wantBlocked("driver docker has the server x")},
		"the grace period ends in a deletion":          {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-5 * time.Second)).GracePeriod(5), observed: policytest.Present(driver.StateStopping), want: "delete Delete => Terminating Terminating"},
		"a deletion waits for the grace period":        {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0.Add(-4 * time.Second)).GracePeriod(5), observed: policytest.Present(driver.StateStopping), want: "wait Stop => Terminating Stopping", check: wantWake(time.Second)},
		"gone is uncertain after a timeout":            {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0), observed: unsettled, want: "wait Delete => Terminating Terminating", check: wantBoth(wantBlocked("2026-01-02T03:04:25Z"), wantWake(20*time.Second))},
		"another driver may have the server":           {vm: withoutBinding(), observed: policytest.Gone(), change: func(in *Input) { in.DeletionBlocker = "qemu does not answer" }, want: "wait => Terminating EngineMismatch", check: wantBoth(wantBlocked("qemu does not answer"), wantWake(30*time.Second))},
		"a server that is gone is to be kept":          {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).DeletionPolicy(api.DeletionRetain), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating", check: wantRetain(true)},
		"a server that is gone is not to be kept":      {vm: policytest.ReportedVM().DeletionTimestamp(policytest.T0).DeletionPolicy(api.DeletionDelete), observed: policytest.Gone(), want: "delete Delete => Terminating Terminating", check: wantRetain(false)},

		"a fetch continues":                    {vm: policytest.ReportedVM(), observed: fetching("pulling: 3 %", nil), want: "wait Create => Creating Fetching", check: wantMessage("pulling: 3 %")},
		"a fetch that was begun just now":      {vm: policytest.ReportedVM().Generation(3), observed: fetching("pulling", nil), change: withPassedGeneration(3), want: "wait Create => Creating Fetching"},
		"a fetch for an old spec":              {vm: policytest.ReportedVM().Generation(3), observed: fetching("pulling", nil), want: "ensure On Create => Creating Creating"},
		"a fetch that has ended":               {vm: policytest.ReportedVM(), observed: fetching("", nil), want: "ensure On Create => Creating Creating"},
		"a fetch that failed":                  {vm: policytest.ReportedVM(), observed: fetching("", errors.New("no such image")), want: "ensure On Create => Creating Creating"},
		"a stop is forced":                     {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).Status(policytest.WithOperation(api.OperationStop, 5*time.Second, "")), observed: policytest.Present(driver.StateStopping), want: "ensure Off Stop => Active Stopping", check: wantStopBy(0)},
		"a stop is not forced yet":             {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).Status(policytest.WithOperation(api.OperationStop, 4*time.Second, "")), observed: policytest.Present(driver.StateStopping), want: "wait Stop => Active Stopping", check: wantWake(time.Second)},
		"a stop whose signal got lost":         {vm: policytest.ReportedVM().Action(api.ActionStopped).GracePeriod(5).Status(policytest.WithOperation(api.OperationStop, 4*time.Second, "")), observed: policytest.Present(driver.StateRunning), want: "ensure Off Stop => Active Stopping", check: wantStopBy(time.Second)},
		"started after a stop, and ended":      {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(stoppedOnRequest), observed: policytest.ChangeServer(policytest.Ended(0), func(s *driver.Server) { s.Run = "run-2" }), want: "wait => Stopped Completed ready"},
		"stopped by us and active again":       {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).Status(stoppedOnRequest), observed: policytest.Ended(0), want: "ensure On Start => Creating Starting"},
		"stopping was under way, active again": {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).Status(policytest.WithOperation(api.OperationStop, time.Second, "")), observed: policytest.Ended(0), want: "ensure On Start => Creating Starting"},
		"a completed VM is so after a change":  {vm: policytest.ReportedVM().Generation(3).RestartPolicy(api.RestartNever).Status(policytest.WithServer("id-1", driver.StateStopped)), observed: policytest.Ended(0), want: "wait => Stopped Completed ready"},

		"quick ends: the first is started at once": {vm: policytest.ReportedVM(), observed: quickEnd, want: "ensure On Start => Creating Restarting"},
		"quick ends: the next ones wait":           {vm: policytest.ReportedVM().Status(looping), observed: quickEnd, want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"quick ends: the wait is over":             {vm: policytest.ReportedVM().Status(looping), observed: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},
		"quick ends: counted until stable":         {vm: policytest.ReportedVM().Status(looping), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.StartedAt = policytest.T0.Add(-time.Second) }), want: "wait Start => Active Running ready", check: wantWake(9 * time.Second)},
		"quick ends: forgotten when stable":        {vm: policytest.ReportedVM().Status(looping), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready"},
		"quick ends: the wait is not a hold":       {vm: policytest.ReportedVM().Status(policytest.Failing(api.OperationStart, 2, time.Second)).Status(func(s *api.VirtualMachineStatus) { s.Operation.Failure = api.FailureExited }).Status(policytest.WithServer("id-1", driver.StateStopped)), observed: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},

		"a changed spec is passed to the driver":              {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(driver.StateRunning), want: "ensure On Update => Active Updating"},
		"a changed spec is passed to the driver, stopped":     {vm: policytest.ReportedVM().Generation(3).Action(api.ActionStopped), observed: policytest.Ended(0), want: "ensure Off Update => Creating Updating"},
		"a changed spec is passed to the driver, paused":      {vm: policytest.ReportedVM().Generation(3).Action(api.ActionPaused), observed: policytest.Present(driver.StatePaused), want: "ensure Paused Update => Paused Updating"},
		"memory changed by hand":                              {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Applied.MemoryBytes = 1 }), want: "ensure On Update => Active Updating"},
		"cpu changed by hand":                                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Applied.CPUMilli = 1 }), want: "ensure On Update => Active Updating"},
		"what waits for a restart is not tried on and on":     {vm: policytest.ReportedVM().Status(policytest.PendingRestart), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Applied.CPUMilli = 1 }), change: withDone(api.OperationUpdate), want: "wait => Active ChangePending", check: wantMessage("image: applied at the next restart")},
		"what waits for a restart is remembered":              {vm: policytest.ReportedVM().Status(policytest.PendingRestart), observed: policytest.Present(driver.StateRunning), want: "wait => Active ChangePending", check: wantMessage("image: applied at the next restart")},
		"what waits for a restart, paused":                    {vm: policytest.ReportedVM().Action(api.ActionPaused).Status(policytest.PendingRestart), observed: policytest.Present(driver.StatePaused), want: "wait => Paused ChangePending", check: wantMessage("set spec.action to active first")},
		"what waited is passed again after a restart":         {vm: policytest.ReportedVM().Status(policytest.PendingRestart), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.StartedAt = policytest.T0 }), want: "ensure On Update => Active Updating"},
		"what waited is done when the driver lists nothing":   {vm: policytest.ReportedVM(), observed: policytest.Present(driver.StateRunning), change: withDone(api.OperationUpdate), want: "wait => Active Running ready"},
		"a probe that does not answer prevents Ready":         {vm: policytest.ReportedVM(), observed: policytest.Present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true, Message: "refused"} }, want: "wait => Active ProbeFailing", check: wantMessage("refused")},
		"a probe that answers":                                {vm: policytest.ReportedVM(), observed: policytest.Present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true, OK: true} }, want: "wait => Active Running ready"},
		"the engine restarts it and says why":                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRestarting), func(s *driver.Server) { s.Exit = &driver.Exit{Code: 137, Reason: "OOMKilled"} }), want: "wait => Active Restarting", check: wantMessage("code 137 (OOMKilled)")},
		"an exit without a better reason":                     {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(3), func(s *driver.Server) { s.Exit.Reason = "Error" }), want: "wait => Failed Exited", check: wantMessage("the server ended with code 3")},
		"exited under Never is final":                         {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.Ended(3), want: "wait => Failed Exited", check: wantStalled},
		"ended by the host's shutdown, Never":                 {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(0), func(s *driver.Server) { s.Exit.Reason = driver.ExitHostShutdown }), want: "ensure On Start => Creating Starting"},
		"ended by the host's shutdown, to be off":             {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: policytest.ChangeServer(policytest.Ended(0), func(s *driver.Server) { s.Exit.Reason = driver.ExitHostShutdown }), want: "wait => Stopped StoppedAsAsked ready"},
		"a run that its host refused, Never":                  {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: endedAs(1, driver.ExitRejected), change: withoutRun, want: "ensure On Start => Creating Restarting", check: wantMessage("the server ended with code 1 (Rejected)")},
		"a run that its host refuses after a crash":           {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(lastRun("run-1")), observed: endedAs(1, driver.ExitRejected), change: withoutRun, want: "wait => Failed Exited", check: wantStalled},
		"a run that another process has seen":                 {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(lastRun("run-0")), observed: endedAs(1, driver.ExitRejected), change: withoutRun, want: "ensure On Start => Creating Restarting"},
		"ended by a drain, Never":                             {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: policytest.ChangeServer(policytest.Ended(6), func(s *driver.Server) { s.Exit.Reason, s.Exit.StopRequested = "Forced", true }), want: "ensure On Start => Creating Starting"},
		"a host that is lost":                                 {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Err, s.HostLost = errors.New("node n1 does not report"), true }), want: "wait => Unknown Unresponsive", check: wantMessage("node n1 does not report")},
		"a drain keeps to its own grace period":               {vm: policytest.ReportedVM().Status(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: drained, want: "wait Stop => Active Stopping"},
		"a drain of what is to stop is forced":                {vm: policytest.ReportedVM().Action(api.ActionStopped).Status(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: drained, want: "ensure Off Stop => Active Stopping"},
		"a drain of what is to restart is forced":             {vm: policytest.ReportedVM().Status(policytest.WithOperation(api.OperationRestart, time.Hour, "run-1")), observed: drained, want: "ensure On Restart => Active Stopping"},
		"a stop by hand is forced":                            {vm: policytest.ReportedVM().Status(policytest.WithOperation(api.OperationStop, time.Hour, "")), observed: policytest.Present(driver.StateStopping), want: "ensure Off Stop => Active Stopping"},
		"the engine restarts what its guest has ended":        {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateRestarting), func(s *driver.Server) { s.Exit = &driver.Exit{} }), want: "wait => Active Restarting", check: wantMessage("ended by itself with code 0")},
		"a run that never began, OnFailure":                   {vm: policytest.ReportedVM().RestartPolicy(api.RestartOnFailure), observed: endedAs(0, driver.ExitNeverRan), change: withoutRun, want: "ensure On Start => Creating Restarting", check: wantMessage("the server was removed before it ran")},
		"a guest without a disk, Never":                       {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever), observed: endedAs(7, driver.ExitNotStarted), want: "ensure On Start => Creating Restarting"},
		"a guest without a disk, again and again":             {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(looping), observed: policytest.ChangeServer(quickEnd, func(s *driver.Server) { s.Exit.Reason = driver.ExitNotStarted }), want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a guest without a disk, to be paused, again":         {vm: policytest.ReportedVM().Action(api.ActionPaused).Status(looping), observed: policytest.ChangeServer(quickEnd, func(s *driver.Server) { s.Exit.Reason = driver.ExitNotStarted }), want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a host that refuses it again, at an unknown time":    {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).Status(looping), observed: policytest.ChangeServer(quickEnd, func(s *driver.Server) { s.Exit.Reason, s.StartedAt = driver.ExitRejected, time.Time{} }), change: withoutRun, want: "wait Start => Failed Restarting", check: wantWake(time.Second)},
		"a guest without a disk, and a changed spec":          {vm: policytest.ReportedVM().Generation(3).Status(looping), observed: policytest.ChangeServer(quickEnd, func(s *driver.Server) { s.Exit.Reason = driver.ExitNotStarted }), want: "ensure On Start => Creating Restarting"},
		"a start that waits gets a changed spec":              {vm: policytest.ReportedVM().Generation(3), observed: policytest.Present(driver.StateStarting), want: "ensure On Start => Creating Starting"},
		"a refused image":                                     {vm: policytest.ReportedVM().Status(policytest.RefusedImage), observed: policytest.Present(driver.StateRunning), want: "wait => Active ImageImmutable", check: wantStalled},
		"a refused image says why":                            {vm: policytest.ReportedVM().Status(policytest.RefusedImage), observed: policytest.Present(driver.StateRunning), want: "wait => Active ImageImmutable", check: wantMessage("image is b: the disk stands on a")},
		"a run that is complete says how it ended":            {vm: policytest.ReportedVM().RestartPolicy(api.RestartOnFailure), observed: policytest.Ended(0), want: "wait => Stopped Completed ready", check: wantMessage("the server ended by itself with code 0")},
		"a note of a server that runs":                        {vm: policytest.ReportedVM(), observed: withNote(driver.StateRunning), want: "wait => Active Running ready", check: wantMessage("a note")},
		"a note of a server that is off":                      {vm: policytest.ReportedVM().Action(api.ActionStopped), observed: withNote(driver.StateStopped), want: "wait => Stopped StoppedAsAsked ready", check: wantMessage("a note")},
		"a note of a server that is paused":                   {vm: policytest.ReportedVM().Action(api.ActionPaused), observed: withNote(driver.StatePaused), want: "wait => Paused PausedAsAsked ready", check: wantMessage("a note")},
		"a refused image, off":                                {vm: policytest.ReportedVM().Action(api.ActionStopped).Status(policytest.RefusedImage), observed: policytest.Ended(0), want: "wait => Stopped ImageImmutable", check: wantStalled},
		"a refused image blocks nothing":                      {vm: policytest.ReportedVM().Action(api.ActionStopped).Status(policytest.RefusedImage), observed: policytest.Present(driver.StateRunning), want: "ensure Off Stop => Active Stopping"},
		"the default action is active, the default is Always": {vm: policytest.ReportedVM(), observed: policytest.Ended(0), want: "ensure On Start => Creating Restarting"},

		"a restart is requested":                     {vm: policytest.ReportedVM().RestartedAt(policytest.T0), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart of a server that ended":           {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).RestartedAt(policytest.T0), observed: policytest.Ended(0), want: "ensure On Restart => Creating Restarting", check: wantRestart(true)},
		"a restartedAt with a fraction, once":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0.Add(123 * time.Millisecond)).Status(func(s *api.VirtualMachineStatus) { s.RestartedAt = &metav1.Time{Time: policytest.T0} }), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restartedAt of zero requests none":        {vm: policytest.ReportedVM().RestartedAt(time.Time{}), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a fraction does not restart during one":     {vm: policytest.ReportedVM().RestartedAt(policytest.T0.Add(123 * time.Millisecond)).Status(restartFor(0, "run-1")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restartedAt at creation requests none":    {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 0 }), observed: policytest.Present(driver.StateRunning), want: "ensure On Update => Active Updating", check: wantRestartHandled},
		"a restart that was written down is done":    {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restart is not done twice":                {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restart requested while it is under way":  {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(time.Second, "run-1")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart requested after its end":          {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(time.Second, "run-0")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a restart that answers the requested value": {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(0, "run-1")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantRestart(false)},
		"a restart that has answered it":             {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(0, "run-0")), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
		"a restart while the run is not known":       {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(driver.StateStopped), func(s *driver.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting", check: wantRestart(false)},
		"a restart whose new run boots":              {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Present(driver.StateStarting), want: "wait Start => Creating Starting", check: wantRestartHandled},
		"a start for which there is no node":         {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Present(driver.StateStarting), func(s *driver.Server) { s.IsUnschedulable, s.Progress = true, "0/2 nodes" }), want: "wait Start => Creating Unschedulable", check: wantMessage("0/2 nodes")},
		"a restart starts what it stopped":           {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Ended(0), want: "ensure On Restart => Creating Restarting", check: wantRestart(false)},
		"a restart waits for the stop":               {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.Present(driver.StateStopping), want: "wait Restart => Active Stopping", check: wantWake(29 * time.Second)},
		"a restart forces the stop":                  {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Minute, "run-1")), observed: policytest.Present(driver.StateStopping), want: "ensure On Restart => Active Stopping", check: wantRestart(false)},
		"no restart of what was just created":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0), observed: policytest.Present(driver.StateRunning), change: withDone(api.OperationCreate), want: "wait => Active Running ready"},
		"no restart while it must be off":            {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Action(api.ActionStopped), observed: policytest.Ended(0), want: "wait => Stopped StoppedAsAsked ready", check: wantRestartHandled},
		"no restart while it must be paused":         {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Action(api.ActionPaused), observed: policytest.Present(driver.StatePaused), want: "wait => Paused PausedAsAsked ready", check: wantRestartHandled},
		"a request during a fetch is recorded":       {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(restartFor(time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Progress = "pulling" }), want: "ensure On Restart => Active Restarting", check: wantRestart(true)},
		"a fetch that no start has begun":            {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *driver.Server) { s.Progress = "pulling" }), want: "ensure On Start => Creating Restarting"},
		"a stop is forced, active again":             {vm: policytest.ReportedVM().GracePeriod(5).Status(policytest.WithOperation(api.OperationStop, 5*time.Second, "")), observed: policytest.Present(driver.StateStopping), want: "ensure Off Stop => Active Stopping"},
		"a restart that waits for an image":          {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: policytest.ChangeServer(policytest.Present(driver.StateRunning), func(s *driver.Server) { s.Progress = "pulling" }), want: "wait Restart => Active Fetching", check: wantMessage("pulling")},
		"a start that waits for an image":            {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *driver.Server) { s.Progress = "pulling" }), change: withDone(api.OperationStart), want: "wait Start => Creating Fetching"},
		"a start that waits for the last run":        {vm: policytest.ReportedVM(), observed: policytest.ChangeServer(policytest.Ended(1), func(s *driver.Server) { s.Progress, s.IsLeaving = "it goes", true }), change: withDone(api.OperationStart), want: "wait Start => Creating Restarting", check: wantMessage("it goes")},
		"a start after an image was fetched":         {vm: policytest.ReportedVM().Status(policytest.WithOperation(api.OperationStart, time.Second, "")), observed: policytest.Ended(1), want: "ensure On Start => Creating Restarting"},
		"a restart whose image took its time":        {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Hour, "run-1")), observed: policytest.Present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: wantStopBy(30 * time.Second)},
		"a restart whose new run has ended":          {vm: policytest.ReportedVM().RestartPolicy(api.RestartNever).RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "run-0")), observed: policytest.Ended(0), want: "wait => Stopped Completed ready", check: wantRestartHandled},
		"a restart of what never ran":                {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(policytest.WithOperation(api.OperationRestart, time.Second, "")), observed: policytest.ChangeServer(policytest.Present(driver.StateStopped), func(s *driver.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting"},
		"a probe not completed yet, ready before":    {vm: policytest.ReportedVM().Status(withReady(-time.Hour)), observed: policytest.Present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true} }, want: "wait => Active Running ready"},
		"a probe that fails, ready before":           {vm: policytest.ReportedVM().Status(withReady(-time.Hour)), observed: policytest.Present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true, Completed: true} }, want: "wait => Active ProbeFailing"},
		"a probe not completed yet, another run":     {vm: policytest.ReportedVM().Status(withReady(-2 * time.Hour)), observed: policytest.Present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true} }, want: "wait => Active ProbeFailing"},
		"a restart that was handled":                 {vm: policytest.ReportedVM().RestartedAt(policytest.T0).Status(func(s *api.VirtualMachineStatus) { s.RestartedAt = &metav1.Time{Time: policytest.T0} }), observed: policytest.Present(driver.StateRunning), want: "wait => Active Running ready", check: wantRestartHandled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := inputOf(tc.vm.Obj(), tc.observed)
			if tc.change != nil {
				tc.change(&in)
			}
			d := Decide(in)
			if got := summaryOf(d); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if tc.check != nil {
				tc.check(t, d)
			}
		})
	}
}

func withoutDriver(in *Input) { in.Driver = "" }

func withPassedGeneration(generation int64) func(*Input) {
	return func(in *Input) { in.PassedGeneration = generation }
}

func withDone(o api.OperationType) func(*Input) { return func(in *Input) { in.Done = o } }

// A check looks at what the summary of a decision leaves out.
type check = func(*testing.T, Decision)

// want checks one part of a decision.
func want[T comparable](what string, part func(Decision) T, wanted T) check {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if got := part(d); got != wanted {
			t.Errorf("%s: got %v, want %v", what, got, wanted)
		}
	}
}

func wantBoth(one, two check) check {
	return func(t *testing.T, d Decision) {
		t.Helper()
		one(t, d)
		two(t, d)
	}
}

func wantMessage(text string) check {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if !strings.Contains(d.Status.Message, text) {
			t.Errorf("message %q lacks %q", d.Status.Message, text)
		}
	}
}

func wantBlocked(text string) check {
	return wantBoth(wantMessage(text), want("blocked", func(d Decision) bool { return d.Status.Blocked }, true))
}

var (
	wantUnobserved     = want("the engine was not queried", func(d Decision) bool { return d.Status.Unobserved }, true)
	wantRestartHandled = want("spec.restartedAt is handled", func(d Decision) bool { return d.Status.RestartHandled }, true)
	wantStalled        = wantBoth(want("stalled", func(d Decision) bool { return d.Status.Stalled }, true),
		want("ready", func(d Decision) bool { return d.Status.Ready }, false))
)

// wantUnchanged wants that the status is left as it is.
func wantUnchanged(wake time.Duration) check {
	return wantBoth(wantWake(wake), want("the status is left", func(d Decision) bool { return d.Status.Unchanged }, true))
}

func wantRetain(release bool) check {
	return want("releases the server", func(d Decision) bool { return d.Action.Retain }, release)
}

func wantAllDrivers(all bool) check {
	return want("queries every driver", func(d Decision) bool { return d.Action.AllDrivers }, all)
}

func wantWake(after time.Duration) check {
	return want("wakes after", func(d Decision) time.Duration { return d.WakeAt.Sub(policytest.T0) }, after)
}

func wantStopBy(after time.Duration) check {
	return want("stops by", func(d Decision) time.Duration { return d.Action.StopBy.Sub(policytest.T0) }, after)
}

// wantNextTry wants that an operation is tried again after a time, and no earlier pass.
func wantNextTry(after time.Duration) check {
	return wantBoth(wantWake(after), want("tries again after", func(d Decision) time.Duration { return d.NextTry.Sub(policytest.T0) }, after))
}

func wantRestart(intent bool) check {
	type restart struct {
		intent  bool
		endRun  string
		handled bool
	}
	return want("restart", func(d Decision) restart {
		return restart{d.Action.RecordFirst, d.Action.EndRun, d.Status.RestartHandled}
	}, restart{intent, "run-1", false})
}

// withNote observes a server with a note by its driver.
func withNote(state driver.State) inventory.Observation {
	return policytest.ChangeServer(policytest.Present(state), func(s *driver.Server) { s.Note = "a note" })
}

// withoutRun has this process never have seen the server run.
func withoutRun(in *Input) { in.Since.Run = time.Time{} }

// lastRun puts a run into the status.
func lastRun(run string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{ID: "id-1", Run: run} }
}

// endedAs observes a server whose run has ended for a reason.
func endedAs(code int, reason string) inventory.Observation {
	return policytest.ChangeServer(policytest.Ended(code), func(s *driver.Server) { s.Exit.Reason = reason })
}

func fencedOut() inventory.Observation {
	o := policytest.Unknown(0)
	o.Fenced, o.Cause = true, errors.New("epoch 9 has acted")
	return o
}

// withoutBinding is a VM under deletion whose binding is lost.
func withoutBinding() *framework.VMBuilder {
	return policytest.ReportedVM().DeletionTimestamp(policytest.T0).Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil })
}

// withOtherWording replaces all human-readable text of a status.
func withOtherWording(vm *api.VirtualMachine) *api.VirtualMachine {
	vm = vm.DeepCopy()
	s := &vm.Status
	s.Binding = &api.Binding{Driver: "fake", EngineID: policytest.EngineID}
	s.Reason, s.Message, s.Phase = "Reworded", "reworded", "Reworded"
	for n := range s.Conditions {
		s.Conditions[n].Reason, s.Conditions[n].Message = "Reworded", "reworded"
	}
	for _, kind := range []string{api.ConditionRunning, api.ConditionRestartRequired, api.ConditionDeletionBlocked} {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Reworded", Message: "reworded"})
	}
	if s.Operation != nil {
		s.Operation.Reason, s.Operation.LastError = "Reworded", "reworded"
	}
	return vm
}

// TestWordingDecidesNothing checks that decide does not depend on reasons, messages
// and conditions, for every state, action, policy and status.
func TestWordingDecidesNothing(t *testing.T) {
	_, looping := policytest.ShortRun(1, 2, time.Second)
	statuses := map[string]func(*api.VirtualMachineStatus){
		"at rest": func(*api.VirtualMachineStatus) {},
		"failing": policytest.Failing(api.OperationUpdate, 2, time.Second),
		"exhausted": func(s *api.VirtualMachineStatus) {
			policytest.Failing(api.OperationCreate, 2, time.Second)(s)
			s.Operation.Failure = api.FailureExhausted
			s.Reason = api.ReasonExhausted
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
				for _, policy := range []api.RestartPolicy{api.RestartAlways, api.RestartOnFailure, api.RestartNever} {
					for _, deleted := range []bool{false, true} {
						b := policytest.ReportedVM().Action(action).RestartPolicy(policy).Status(status)
						if deleted {
							b = b.DeletionTimestamp(policytest.T0.Add(-time.Second))
						}
						vm := b.Obj()
						got, want := Decide(inputOf(withOtherWording(vm), observed)), Decide(inputOf(vm, observed))
						if g, w := withoutWording(got), withoutWording(want); g != w {
							t.Errorf("%s, %s, %s, %s, deleted %v:\ngot  %s\nwant %s", state, kind, action, policy, deleted, g, w)
						}
					}
				}
			}
		}
	}
}

// withoutWording formats a plan without its human-readable text.
func withoutWording(d Decision) string {
	d.Status.Reason, d.Status.Message, d.Status.Refused = "", "", nil
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
			if got := Earliest(tc.a, tc.b); !got.Equal(tc.want) {
				t.Errorf("got %s", got)
			}
		})
	}
}
