// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

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
	"cloudnative.tw/drover/test/vmtest"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const engine = "engine-1"

// observed is a VM that was reported once and whose spec is unchanged since.
func observed() *vmtest.Builder {
	return vmtest.VM("vm").UID("uid-1").Generation(2).Bound("fake/" + engine).
		Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 2 })
}

func present(state driver.State) inventory.Observation {
	s := driver.Server{UID: "uid-1", ID: "id-1", Namespace: "default", Name: "vm", State: state, Run: "run-1"}
	s.Applied = driver.Resources{CPUMilli: 2000, MemoryBytes: 4e9}
	if state != driver.StatePending {
		s.StartedAt = t0.Add(-time.Hour)
	}
	return inventory.Observation{Answer: inventory.Present, Server: s, EngineID: engine}
}

func ended(code int) inventory.Observation {
	o := present(driver.StateStopped)
	o.Server.Exit = &driver.Exit{Code: code, At: t0.Add(-time.Second)}
	return o
}

func gone() inventory.Observation {
	return inventory.Observation{Answer: inventory.Gone, EngineID: engine}
}

func unknown(since time.Duration) inventory.Observation {
	return inventory.Observation{EngineID: engine, DownSince: t0.Add(-since), Cause: errors.New("connection refused")}
}

func ask(vm *api.VirtualMachine, seen inventory.Observation) Input {
	return Input{VM: vm, Seen: seen, Now: t0, Since: sinceWritten(vm, seen), ShownGeneration: vm.Status.ObservedGeneration, Driver: "fake", Drivers: []string{"fake", "docker"}}
}

// sinceWritten uses the times in an object and a server as the instants at which
// they were seen.
func sinceWritten(vm *api.VirtualMachine, seen inventory.Observation) (s Instants) {
	if at := vm.DeletionTimestamp; at != nil {
		s.Deletion = at.Time
	}
	if op := vm.Status.Operation; op != nil {
		s.Operation = op.StartedAt.Time
		if op.NextRetryTime != nil {
			s.Failure = op.NextRetryTime.Add(-Backoff(op.Attempts, op.Failure == api.FailureExhausted))
		}
	}
	s.Run = seen.Server.StartedAt
	if seen.Server.Exit != nil {
		s.Exit = seen.Server.Exit.At
	}
	return s
}

// brief formats a plan's policy as one line.
func brief(d Decision) string {
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

var seenStates = map[string]inventory.Observation{
	"gone":       gone(),
	"pending":    present(driver.StatePending),
	"starting":   present(driver.StateStarting),
	"running":    present(driver.StateRunning),
	"paused":     present(driver.StatePaused),
	"stopping":   present(driver.StateStopping),
	"never ran":  present(driver.StateStopped),
	"ended 0":    ended(0),
	"ended 1":    ended(1),
	"restarting": present(driver.StateRestarting),
	"removing":   present(driver.StateRemoving),
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
				vm := observed().Action(api.Action(row.action)).RestartPolicy(api.RestartPolicy(policy)).Obj()
				if got := brief(Decide(ask(vm, seenStates[row.state]))); got != row.want {
					t.Errorf("got  %s\nwant %s", got, row.want)
				}
			})
		}
	}
	if all := len(seenStates) * 3 * len(policies); len(done) != all {
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
	for state, seen := range seenStates {
		t.Run(state, func(t *testing.T) {
			for policy, want := range map[api.DeletionPolicy]string{api.DeletionDelete: rows[state].remove, api.DeletionRetain: rows[state].retain} {
				vm := observed().Deleted(t0).DeletionPolicy(policy).Obj()
				if got := brief(Decide(ask(vm, seen))); got != want {
					t.Errorf("%s:\ngot  %s\nwant %s", policy, got, want)
				}
			}
		})
	}
}

// failing puts a failed operation into the status. Its next try is due after wait.
func failing(kind api.OperationType, attempts int32, wait time.Duration) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		next := metav1.NewMicroTime(t0.Add(wait))
		s.Phase, s.Reason, s.Message = api.PhaseFailed, api.ReasonOperationFailed, "boom"
		s.Operation = &api.Operation{Type: kind, Generation: 2, Attempts: attempts, StartedAt: metav1.NewMicroTime(t0.Add(-time.Minute)), NextRetryTime: &next, Failure: api.FailureFailed, Reason: api.ReasonOperationFailed, LastError: "boom"}
	}
}

func stalled(s *api.VirtualMachineStatus) {
	s.Reason, s.Message = api.ReasonInvalid, "no"
	s.Operation = &api.Operation{Type: api.OperationCreate, Generation: 2, Attempts: 1, Failure: api.FailureRefused, Reason: api.ReasonInvalid, LastError: "spec.cpu: no"}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: api.ConditionStalled, Status: metav1.ConditionTrue, Reason: "Invalid"})
}

func left(id string, state driver.State) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{ID: id, State: string(state)} }
}

func operation(kind api.OperationType, ago time.Duration, run string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: kind, StartedAt: metav1.NewMicroTime(t0.Add(-ago)), Run: run}
	}
}

// answering puts a restart into the status that answers a restartedAt of before t0
// by before.
func answering(before time.Duration, run string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		operation(api.OperationRestart, time.Second, run)(s)
		s.Operation.RestartedAt = &metav1.Time{Time: t0.Add(-before)}
	}
}

func quick(code int, attempts int32, endedAgo time.Duration) (inventory.Observation, func(*api.VirtualMachineStatus)) {
	o := ended(code)
	o.Server.Exit.At = t0.Add(-endedAgo)
	o.Server.StartedAt = o.Server.Exit.At.Add(-time.Second)
	return o, func(s *api.VirtualMachineStatus) {
		s.Phase, s.Reason = api.PhaseActive, api.ReasonRunning
		s.Operation = &api.Operation{Type: api.OperationStart, Attempts: attempts, Failure: api.FailureExited}
	}
}

func restartRequired(s *api.VirtualMachineStatus) {
	started := metav1.NewMicroTime(t0.Add(-time.Hour))
	s.StartTime = &started
	s.PendingFields = []string{"image"}
}

// offOnRequest records that Drover stopped the run of present and ended.
func offOnRequest(s *api.VirtualMachineStatus) {
	s.Server = &api.ServerStatus{ID: "id-1", State: string(driver.StateStopped), StoppedRun: "run-1"}
}

func readySince(started time.Duration) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		at := metav1.NewMicroTime(t0.Add(started))
		s.StartTime = &at
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: api.ConditionReady, Status: metav1.ConditionTrue, Reason: "Running"})
	}
}

func change(o inventory.Observation, fn func(*driver.Server)) inventory.Observation {
	fn(&o.Server)
	return o
}

func TestDecide(t *testing.T) {
	quickEnd, looping := quick(3, 2, time.Second)
	quickEndLongAgo, _ := quick(3, 2, time.Minute)
	back := gone()
	back.BackSince = t0
	twins := present(driver.StateRunning)
	twins.Duplicates = []string{"id-1", "id-2"}
	unsettled := gone()
	unsettled.SettlesAt = t0.Add(20 * time.Second)
	fetching := func(doing string, err error) inventory.Observation {
		return change(present(driver.StatePending), func(s *driver.Server) { s.ID, s.Progress, s.Err = "", doing, err })
	}
	tests := map[string]struct {
		vm     *vmtest.Builder
		seen   inventory.Observation
		change func(*Input)
		want   string
		check  func(*testing.T, Decision)
	}{
		"an outage is not shown before 5 s": {vm: observed(), seen: unknown(4 * time.Second), want: "wait =>  ", check: func(t *testing.T, d Decision) {
			if !d.Status.Unchanged || !d.Wake.Equal(t0.Add(time.Second)) {
				t.Errorf("quiet %v, wake %v", d.Status.Unchanged, d.Wake)
			}
		}},
		"an outage is shown after 5 s":       {vm: observed(), seen: unknown(5 * time.Second), want: "wait => Unknown EngineUnavailable"},
		"an engine that refuses the leader":  {vm: observed(), seen: refusing(), want: "wait => Unknown Fenced", check: says("epoch 9 has acted")},
		"deletion, an engine that refuses":   {vm: observed().Deleted(t0), seen: refusing(), want: "wait Delete => Terminating Fenced", check: isBlocked("epoch 9 has acted")},
		"a deletion in an outage is blocked": {vm: observed().Deleted(t0), seen: unknown(5 * time.Second), want: "wait Delete => Terminating EngineUnavailable", check: isBlocked("connection refused")},
		"a deletion in a short outage waits": {vm: observed().Deleted(t0), seen: unknown(time.Second), want: "wait =>  "},
		"another engine answers":             {vm: observed(), seen: inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, want: "wait => Unknown EngineMismatch"},
		"deletion, another engine answers":   {vm: observed().Deleted(t0), seen: inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, want: "wait Delete => Terminating EngineMismatch", check: isBlocked("remove the finalizer")},
		"unknown driver": {vm: vmtest.VM("vm").Driver("xen"), change: stray, want: "wait => Failed UnknownDriver", check: func(t *testing.T, d Decision) {
			if !d.Status.Stalled || !strings.Contains(d.Status.Message, `"xen"`) || !strings.Contains(d.Status.Message, "fake, docker") {
				t.Errorf("stalled %v, message %q", d.Status.Stalled, d.Status.Message)
			}
		}},
		"bound to a driver that does not run here": {vm: observed(), change: stray, want: "wait => Unknown EngineMismatch"},
		"two servers of one UID":                   {vm: observed(), seen: twins, want: "wait => Failed Duplicate"},
		"two servers of one UID, deletion":         {vm: observed().Deleted(t0), seen: twins, want: "wait Delete => Terminating Duplicate", check: isBlocked("id-1, id-2")},

		"backoff is honoured":                          {vm: observed().Status(failing(api.OperationCreate, 4, 3*time.Second)), seen: gone(), want: "wait Create => Failed OperationFailed", check: wakesAt(3 * time.Second)},
		"backoff ends":                                 {vm: observed().Status(failing(api.OperationCreate, 4, 0)), seen: gone(), want: "ensure On Create => Creating Creating"},
		"a new spec ends backoff":                      {vm: observed().Generation(3).Status(failing(api.OperationCreate, 4, time.Minute)), seen: gone(), want: "ensure On Create => Creating Creating"},
		"another server ends backoff":                  {vm: observed().Status(failing(api.OperationCreate, 4, time.Minute)), seen: present(driver.StateRunning), want: "wait => Active Running ready"},
		"a server that went ends backoff":              {vm: observed().Status(failing(api.OperationUpdate, 4, time.Minute)).Status(left("id-1", driver.StateRunning)), seen: gone(), want: "ensure On Create => Creating Creating"},
		"an engine that returns ends backoff":          {vm: observed().Status(failing(api.OperationCreate, 4, time.Second)), seen: back, want: "ensure On Create => Creating Creating"},
		"a failing update waits, active":               {vm: observed().Status(failing(api.OperationUpdate, 4, time.Second)).Status(left("id-1", driver.StateRunning)), seen: present(driver.StateRunning), want: "wait Update => Active OperationFailed"},
		"a failing update is tried again":              {vm: observed().Status(failing(api.OperationUpdate, 4, 0)).Status(left("id-1", driver.StateRunning)), seen: present(driver.StateRunning), change: showed(1), want: "ensure On Update => Active Updating"},
		"a failing start waits":                        {vm: observed().Status(failing(api.OperationStart, 1, time.Second)).Status(left("id-1", driver.StateStopped)), seen: present(driver.StateStopped), want: "wait Start => Failed OperationFailed"},
		"a failing start after an end goes on":         {vm: observed().RestartPolicy(api.RestartNever).Status(failing(api.OperationStart, 1, 0)).Status(offOnRequest), seen: ended(1), want: "ensure On Start => Creating Starting"},
		"a failing pull waits":                         {vm: observed().Status(failing(api.OperationCreate, 1, time.Second)).Status(left("", driver.StatePending)), seen: gone(), want: "wait Create => Failed OperationFailed"},
		"backoff does not hold a deletion":             {vm: observed().Deleted(t0).Status(failing(api.OperationCreate, 9, time.Minute)), seen: gone(), want: "delete Delete => Terminating Terminating"},
		"a deletion that found nothing is the end":     {vm: observed().Deleted(t0), seen: gone(), change: did(api.OperationDelete), want: "finish Delete => Terminating Terminating"},
		"a release is the end":                         {vm: observed().Deleted(t0).DeletionPolicy(api.DeletionRetain), seen: gone(), change: did(api.OperationRelease), want: "finish Delete => Terminating Terminating"},
		"stalled stays":                                {vm: observed().Status(stalled), seen: gone(), want: "wait Create => Failed Invalid"},
		"stalled ends with a new spec":                 {vm: observed().Status(stalled).Generation(3), seen: gone(), want: "ensure On Create => Creating Creating"},
		"stalled without an operation is over":         {vm: observed().Status(stalled).Status(func(s *api.VirtualMachineStatus) { s.Operation = nil }), seen: gone(), want: "ensure On Create => Creating Creating"},
		"not bound yet":                                {vm: vmtest.VM("vm").UID("uid-1").Generation(1), seen: gone(), want: "wait =>  ", check: wakesAt(bindRetry)},
		"the first list is waited for":                 {vm: observed(), seen: inventory.Observation{Cause: errors.New("not listed")}, want: "wait =>  "},
		"a failing proof that it is gone waits":        {vm: observed().Deleted(t0).Status(failing(api.OperationDelete, 2, time.Second)), seen: gone(), want: "wait Delete => Terminating OperationFailed"},
		"an engine that returns ends a removal's wait": {vm: observed().Deleted(t0).Status(failing(api.OperationDelete, 2, time.Second)), seen: back, want: "delete Delete => Terminating Terminating"},
		"an unresponsive server is not ready":          {vm: observed(), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.Err = errors.New("inspect hangs") }), want: "wait => Active Unresponsive", check: says("inspect hangs")},
		"a change while the engine restarts it":        {vm: observed().Generation(3), seen: present(driver.StateRestarting), want: "ensure On Update => Active Updating"},
		"a failing removal waits and says so":          {vm: observed().Deleted(t0).Status(failing(api.OperationDelete, 2, time.Second)).Status(left("id-1", driver.StateStopped)), seen: ended(0), want: "wait Delete => Terminating OperationFailed", check: isBlocked("boom; next try at 2026-01-02T03:04:06Z")},
		"a failing removal is tried again":             {vm: observed().Deleted(t0).Status(failing(api.OperationDelete, 2, 0)), seen: ended(0), want: "delete Delete => Terminating Terminating"},
		"a removal that took is waited for":            {vm: observed().Deleted(t0), seen: ended(0), change: did(api.OperationDelete), want: "wait Delete => Terminating Terminating", check: wakesAt(removalPoll)},
		"a stop that failed before the deletion":       {vm: observed().Generation(3).Deleted(t0).Status(failing(api.OperationStop, 1, time.Minute)), seen: present(driver.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: stopsBy(30 * time.Second)},
		"a stop that fails is tried again":             {vm: observed().Deleted(t0.Add(-time.Second)).Status(failing(api.OperationStop, 1, 0)), seen: present(driver.StateRunning), want: "ensure Off Stop => Terminating Stopping", check: stopsBy(29 * time.Second)},
		"a stop that fails waits for its next try":     {vm: observed().Deleted(t0.Add(-time.Second)).Status(failing(api.OperationStop, 1, time.Second)), seen: present(driver.StateRunning), want: "wait Stop => Terminating OperationFailed", check: isBlocked("boom")},
		"a failing stop holds a deletion no longer":    {vm: observed().Deleted(t0.Add(-30 * time.Second)).Status(failing(api.OperationStop, 5, time.Second)), seen: present(driver.StateRunning), want: "delete Delete => Terminating Terminating"},
		"no binding and one driver did not say gone":   {vm: unproven(), seen: gone(), change: func(in *Input) { in.Unproven = "driver docker has the server x" }, want: "wait => Terminating EngineMismatch", check: isBlocked("driver docker has the server x")},
		"no binding: every driver is asked":            {vm: unproven(), seen: gone(), change: did(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: asksEverywhere(true)},
		"a binding: one driver is asked":               {vm: observed().Deleted(t0), seen: gone(), change: did(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: asksEverywhere(false)},
		"no binding, never observed":                   {vm: unproven().Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = -1 }), seen: gone(), change: did(api.OperationDelete), want: "finish Delete => Terminating Terminating", check: asksEverywhere(false)},
		"the grace period ends in a deletion":          {vm: observed().Deleted(t0.Add(-5 * time.Second)).Grace(5), seen: present(driver.StateStopping), want: "delete Delete => Terminating Terminating"},
		"a deletion waits for the grace period":        {vm: observed().Deleted(t0.Add(-4 * time.Second)).Grace(5), seen: present(driver.StateStopping), want: "wait Stop => Terminating Stopping", check: wakesAt(time.Second)},
		"gone is not believed after a timeout yet":     {vm: observed().Deleted(t0), seen: unsettled, want: "wait Delete => Terminating Terminating", check: isBlocked("2026-01-02T03:04:25Z")},

		"a fetch goes on":                      {vm: observed(), seen: fetching("pulling: 3 %", nil), want: "wait Create => Creating Fetching", check: says("pulling: 3 %")},
		"a fetch that was begun just now":      {vm: observed().Generation(3), seen: fetching("pulling", nil), change: showed(3), want: "wait Create => Creating Fetching"},
		"a fetch for an old spec":              {vm: observed().Generation(3), seen: fetching("pulling", nil), want: "ensure On Create => Creating Creating"},
		"a fetch that has ended":               {vm: observed(), seen: fetching("", nil), want: "ensure On Create => Creating Creating"},
		"a fetch that failed":                  {vm: observed(), seen: fetching("", errors.New("no such image")), want: "ensure On Create => Creating Creating"},
		"a stop is forced":                     {vm: observed().Action(api.ActionStopped).Grace(5).Status(operation(api.OperationStop, 5*time.Second, "")), seen: present(driver.StateStopping), want: "ensure Off Stop => Active Stopping", check: stopsBy(0)},
		"a stop is not forced yet":             {vm: observed().Action(api.ActionStopped).Grace(5).Status(operation(api.OperationStop, 4*time.Second, "")), seen: present(driver.StateStopping), want: "wait Stop => Active Stopping", check: wakesAt(time.Second)},
		"a stop whose signal got lost":         {vm: observed().Action(api.ActionStopped).Grace(5).Status(operation(api.OperationStop, 4*time.Second, "")), seen: present(driver.StateRunning), want: "ensure Off Stop => Active Stopping", check: stopsBy(time.Second)},
		"started after a stop, and ended":      {vm: observed().RestartPolicy(api.RestartNever).Status(offOnRequest), seen: change(ended(0), func(s *driver.Server) { s.Run = "run-2" }), want: "wait => Stopped Completed ready"},
		"stopped by us and active again":       {vm: observed().Generation(3).RestartPolicy(api.RestartNever).Status(offOnRequest), seen: ended(0), want: "ensure On Start => Creating Starting"},
		"stopping was under way, active again": {vm: observed().Generation(3).RestartPolicy(api.RestartNever).Status(operation(api.OperationStop, time.Second, "")), seen: ended(0), want: "ensure On Start => Creating Starting"},
		"a completed VM stays so on a change":  {vm: observed().Generation(3).RestartPolicy(api.RestartNever).Status(left("id-1", driver.StateStopped)), seen: ended(0), want: "wait => Stopped Completed ready"},

		"quick ends: the first is started at once": {vm: observed(), seen: quickEnd, want: "ensure On Start => Creating Restarting"},
		"quick ends: the next ones wait":           {vm: observed().Status(looping), seen: quickEnd, want: "wait Start => Failed Restarting", check: wakesAt(time.Second)},
		"quick ends: the wait is over":             {vm: observed().Status(looping), seen: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},
		"quick ends: counted until stable":         {vm: observed().Status(looping), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.StartedAt = t0.Add(-time.Second) }), want: "wait Start => Active Running ready", check: wakesAt(9 * time.Second)},
		"quick ends: forgotten when stable":        {vm: observed().Status(looping), seen: present(driver.StateRunning), want: "wait => Active Running ready"},
		"quick ends: the wait is not a hold":       {vm: observed().Status(failing(api.OperationStart, 2, time.Second)).Status(func(s *api.VirtualMachineStatus) { s.Operation.Failure = api.FailureExited }).Status(left("id-1", driver.StateStopped)), seen: quickEndLongAgo, want: "ensure On Start => Creating Restarting"},

		"a changed spec is shown to the driver":               {vm: observed().Generation(3), seen: present(driver.StateRunning), want: "ensure On Update => Active Updating"},
		"a changed spec is shown to the driver, stopped":      {vm: observed().Generation(3).Action(api.ActionStopped), seen: ended(0), want: "ensure Off Update => Creating Updating"},
		"a changed spec is shown to the driver, paused":       {vm: observed().Generation(3).Action(api.ActionPaused), seen: present(driver.StatePaused), want: "ensure Paused Update => Paused Updating"},
		"memory changed by hand":                              {vm: observed(), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.Applied.MemoryBytes = 1 }), want: "ensure On Update => Active Updating"},
		"cpu changed by hand":                                 {vm: observed(), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.Applied.CPUMilli = 1 }), want: "ensure On Update => Active Updating"},
		"what waits for a restart is not tried on and on":     {vm: observed().Status(restartRequired), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.Applied.CPUMilli = 1 }), change: did(api.OperationUpdate), want: "wait => Active ChangePending", check: says("image: applied at the next restart")},
		"what waits for a restart is remembered":              {vm: observed().Status(restartRequired), seen: present(driver.StateRunning), want: "wait => Active ChangePending", check: says("image: applied at the next restart")},
		"what waited is looked at again after a restart":      {vm: observed().Status(restartRequired), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.StartedAt = t0 }), want: "ensure On Update => Active Updating"},
		"what waited is done when the driver says no more":    {vm: observed(), seen: present(driver.StateRunning), change: did(api.OperationUpdate), want: "wait => Active Running ready"},
		"a probe that does not answer keeps it from Ready":    {vm: observed(), seen: present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true, Message: "refused"} }, want: "wait => Active ProbeFailing", check: says("refused")},
		"a probe that answers":                                {vm: observed(), seen: present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true, OK: true} }, want: "wait => Active Running ready"},
		"the engine restarts it and says why":                 {vm: observed(), seen: change(present(driver.StateRestarting), func(s *driver.Server) { s.Exit = &driver.Exit{Code: 137, Reason: "OOMKilled"} }), want: "wait => Active Restarting", check: says("code 137 (OOMKilled)")},
		"an exit without a better reason":                     {vm: observed().RestartPolicy(api.RestartNever), seen: change(ended(3), func(s *driver.Server) { s.Exit.Reason = "Error" }), want: "wait => Failed Exited", check: says("the server ended with code 3")},
		"exited under Never is final":                         {vm: observed().RestartPolicy(api.RestartNever), seen: ended(3), want: "wait => Failed Exited", check: isStalled},
		"ended by the host's shutdown, Never":                 {vm: observed().RestartPolicy(api.RestartNever), seen: change(ended(0), func(s *driver.Server) { s.Exit.Reason = driver.ExitHostShutdown }), want: "ensure On Start => Creating Starting"},
		"ended by the host's shutdown, to be off":             {vm: observed().Action(api.ActionStopped), seen: change(ended(0), func(s *driver.Server) { s.Exit.Reason = driver.ExitHostShutdown }), want: "wait => Stopped StoppedAsAsked ready"},
		"a refused image":                                     {vm: observed().Status(refusedImage), seen: present(driver.StateRunning), want: "wait => Active ImageImmutable", check: isStalled},
		"a refused image, off":                                {vm: observed().Action(api.ActionStopped).Status(refusedImage), seen: ended(0), want: "wait => Stopped ImageImmutable", check: isStalled},
		"a refused image holds nothing up":                    {vm: observed().Action(api.ActionStopped).Status(refusedImage), seen: present(driver.StateRunning), want: "ensure Off Stop => Active Stopping"},
		"the default action is active, the default is Always": {vm: observed(), seen: ended(0), want: "ensure On Start => Creating Restarting"},

		"a restart is asked for":                     {vm: observed().RestartedAt(t0), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: restarts(true)},
		"a restart of a server that ended":           {vm: observed().RestartPolicy(api.RestartNever).RestartedAt(t0), seen: ended(0), want: "ensure On Restart => Creating Restarting", check: restarts(true)},
		"a restartedAt at creation asks for none":    {vm: observed().RestartedAt(t0).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = -1 }), seen: present(driver.StateRunning), want: "ensure On Update => Active Updating", check: isHandled},
		"a restart that was written down is done":    {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-1")), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: restarts(false)},
		"a restart is not done twice":                {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-0")), seen: present(driver.StateRunning), want: "wait => Active Running ready", check: isHandled},
		"a restart asked for while it is under way":  {vm: observed().RestartedAt(t0).Status(answering(time.Second, "run-1")), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: restarts(true)},
		"a restart asked for after its end":          {vm: observed().RestartedAt(t0).Status(answering(time.Second, "run-0")), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: restarts(true)},
		"a restart that answers what is asked for":   {vm: observed().RestartedAt(t0).Status(answering(0, "run-1")), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: restarts(false)},
		"a restart that has answered it":             {vm: observed().RestartedAt(t0).Status(answering(0, "run-0")), seen: present(driver.StateRunning), want: "wait => Active Running ready", check: isHandled},
		"a restart while the run is not known":       {vm: observed().RestartedAt(t0).Status(answering(time.Second, "run-1")), seen: change(present(driver.StateStopped), func(s *driver.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting", check: restarts(false)},
		"a restart whose new run boots":              {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-0")), seen: present(driver.StateStarting), want: "wait Start => Creating Starting", check: isHandled},
		"a restart starts what it stopped":           {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-1")), seen: ended(0), want: "ensure On Restart => Creating Restarting", check: restarts(false)},
		"a restart waits for the stop":               {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-1")), seen: present(driver.StateStopping), want: "wait Restart => Active Stopping", check: wakesAt(29 * time.Second)},
		"a restart forces the stop":                  {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Minute, "run-1")), seen: present(driver.StateStopping), want: "ensure On Restart => Active Stopping", check: restarts(false)},
		"a restart of what was made anew is no more": {vm: observed().RestartedAt(t0), seen: present(driver.StateRunning), change: did(api.OperationCreate), want: "wait => Active Running ready"},
		"a restart while it is to be off is no more": {vm: observed().RestartedAt(t0).Action(api.ActionStopped), seen: ended(0), want: "wait => Stopped StoppedAsAsked ready", check: isHandled},
		"a restart that waits for an image":          {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-1")), seen: change(present(driver.StateRunning), func(s *driver.Server) { s.Progress = "pulling" }), want: "wait Restart => Active Fetching", check: says("pulling")},
		"a start that waits for an image":            {vm: observed(), seen: change(ended(1), func(s *driver.Server) { s.Progress = "pulling" }), change: did(api.OperationStart), want: "wait Start => Creating Fetching"},
		"a start after an image was fetched":         {vm: observed().Status(operation(api.OperationStart, time.Second, "")), seen: ended(1), want: "ensure On Start => Creating Restarting"},
		"a restart whose image took its time":        {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Hour, "run-1")), seen: present(driver.StateRunning), want: "ensure On Restart => Active Restarting", check: stopsBy(30 * time.Second)},
		"a restart whose new run has ended":          {vm: observed().RestartPolicy(api.RestartNever).RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "run-0")), seen: ended(0), want: "wait => Stopped Completed ready", check: isHandled},
		"a restart of what never ran":                {vm: observed().RestartedAt(t0).Status(operation(api.OperationRestart, time.Second, "")), seen: change(present(driver.StateStopped), func(s *driver.Server) { s.Run = "" }), want: "ensure On Restart => Creating Restarting"},
		"a probe not asked yet, ready before":        {vm: observed().Status(readySince(-time.Hour)), seen: present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true} }, want: "wait => Active Running ready"},
		"a probe not asked yet, another run":         {vm: observed().Status(readySince(-2 * time.Hour)), seen: present(driver.StateRunning), change: func(in *Input) { in.Probe = ProbeResult{Wanted: true} }, want: "wait => Active ProbeFailing"},
		"a restart that was handled":                 {vm: observed().RestartedAt(t0).Status(func(s *api.VirtualMachineStatus) { s.RestartedAt = &metav1.Time{Time: t0} }), seen: present(driver.StateRunning), want: "wait => Active Running ready", check: isHandled},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := ask(tc.vm.Obj(), tc.seen)
			if tc.change != nil {
				tc.change(&in)
			}
			d := Decide(in)
			if got := brief(d); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if tc.check != nil {
				tc.check(t, d)
			}
		})
	}
}

func stray(in *Input) { in.Driver = "" }

func showed(generation int64) func(*Input) {
	return func(in *Input) { in.ShownGeneration = generation }
}

func did(o api.OperationType) func(*Input) { return func(in *Input) { in.Done = o } }

func isBlocked(text string) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if !d.Status.Blocked || !strings.Contains(d.Status.Message, text) {
			t.Errorf("blocked %v, message %q lacks %q", d.Status.Blocked, d.Status.Message, text)
		}
	}
}

func says(text string) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if !strings.Contains(d.Status.Message, text) {
			t.Errorf("message %q lacks %q", d.Status.Message, text)
		}
	}
}

func wakesAt(after time.Duration) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if !d.Wake.Equal(t0.Add(after)) {
			t.Errorf("wakes after %s, want %s", d.Wake.Sub(t0), after)
		}
	}
}

func stopsBy(after time.Duration) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if !d.Action.StopBy.Equal(t0.Add(after)) {
			t.Errorf("stops by %s, want %s", d.Action.StopBy.Sub(t0), after)
		}
	}
}

func restarts(intent bool) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if d.Action.RecordFirst != intent || d.Action.EndRun != "run-1" || d.Status.RestartHandled {
			t.Errorf("intent %v, ends run %q, handled %v", d.Action.RecordFirst, d.Action.EndRun, d.Status.RestartHandled)
		}
	}
}

func refusing() inventory.Observation {
	o := unknown(0)
	o.Fenced, o.Cause = true, errors.New("epoch 9 has acted")
	return o
}

// unproven is a VM under deletion whose binding is lost.
func unproven() *vmtest.Builder {
	return observed().Deleted(t0).Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil })
}

func asksEverywhere(want bool) func(*testing.T, Decision) {
	return func(t *testing.T, d Decision) {
		t.Helper()
		if d.Action.AllDrivers != want {
			t.Errorf("asks every driver: %v", d.Action.AllDrivers)
		}
	}
}

func refusedImage(s *api.VirtualMachineStatus) {
	s.RefusedField = &api.RefusedField{Field: "image", Reason: api.ReasonImageImmutable, Message: "image is b: the disk stands on a"}
}

func isStalled(t *testing.T, d Decision) {
	t.Helper()
	if !d.Status.Stalled || d.Status.Ready {
		t.Errorf("stalled %v, ready %v", d.Status.Stalled, d.Status.Ready)
	}
}

func isHandled(t *testing.T, d Decision) {
	t.Helper()
	if !d.Status.RestartHandled {
		t.Error("spec.restartedAt is not marked as handled")
	}
}
