// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// stepOf returns a step for vm whose server is observed.
func stepOf(vm *api.VirtualMachine, observed inventory.Observation) *step {
	r := &Reconciler{Driver: "fake", Drivers: []string{"fake", "docker"}, Clock: framework.NewFakeClock(vmtest.T0), Epoch: func() uint64 { return 7 }}
	known := facts{base: vm, vm: vm.DeepCopy(), observed: observation{Observation: observed}, passedGeneration: vm.Status.ObservedGeneration}
	return &step{r: r, facts: known}
}

// statusOf returns the status that a pass over vm would write.
func statusOf(vm *api.VirtualMachine, observed inventory.Observation) api.VirtualMachineStatus {
	p := stepOf(vm, observed)
	return p.statusAfter(nil)
}

// statusAfter decides from the pass's input, as changed, and returns the status that
// follows.
func (s *step) statusAfter(change func(*policy.Input)) api.VirtualMachineStatus {
	in := s.r.inputOf(s.facts)
	in.Epoch = 0 // the leader whose refusal vmtest has
	if change != nil {
		change(&in)
	}
	s.r.Driver, s.decision = in.Driver, policy.Decide(in)
	return s.pass().newStatus(vmtest.T0)
}

func withRates(cpu, memory float64) inventory.Observation {
	o := vmtest.Present(driver.StateRunning)
	o.Rates = &inventory.Rates{CPU: cpu, Memory: memory}
	return o
}

func withUsage() *framework.VMBuilder {
	return vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) {
		s.Server = &api.ServerStatus{ID: "id-1", State: "Running", Usage: &api.Usage{CPU: 10, Memory: 20}}
	})
}

func TestUsageInStatus(t *testing.T) {
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		want     *api.Usage
	}{
		"rounded to 0.01":               {vmtest.ReportedVM(), withRates(12.3456, 7.899), &api.Usage{CPU: 12.35, Memory: 7.9}},
		"zero is shown":                 {vmtest.ReportedVM(), withRates(0, 0), &api.Usage{}},
		"unchanged if it moved little":  {withUsage(), withRates(10.99, 19.01), &api.Usage{CPU: 10, Memory: 20}},
		"new when cpu moved a point":    {withUsage(), withRates(11, 20), &api.Usage{CPU: 11, Memory: 20}},
		"new when memory moved a point": {withUsage(), withRates(10, 21.5), &api.Usage{CPU: 10, Memory: 21.5}},
		"unchanged without a sample":    {withUsage(), vmtest.Present(driver.StateRunning), &api.Usage{CPU: 10, Memory: 20}},
		"dropped when it is off":        {withUsage(), vmtest.Ended(1), nil},
		"dropped with another server":   {withUsage(), vmtest.ChangeServer(vmtest.Present(driver.StateRunning), func(s *driver.Server) { s.ID = "id-2" }), nil},
		"dropped if the server is gone": {withUsage(), vmtest.Gone(), nil},
		"unchanged in an outage":        {withUsage(), vmtest.Unknown(time.Minute), &api.Usage{CPU: 10, Memory: 20}},
		"unchanged with another engine": {withUsage(), inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, &api.Usage{CPU: 10, Memory: 20}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got *api.Usage
			if s := statusOf(tc.vm.Obj(), tc.observed).Server; s != nil {
				got = s.Usage
			}
			assert.True(t, (got == nil) == (tc.want == nil) && (got == nil || *got == *tc.want), "got %+v, want %+v", got, tc.want)
		})
	}
}

func TestRestartCount(t *testing.T) {
	started := func(at time.Time) inventory.Observation {
		return vmtest.ChangeServer(vmtest.Present(driver.StateRunning), func(s *driver.Server) { s.StartedAt = at })
	}
	had := func(at time.Time) *framework.VMBuilder {
		return vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) {
			stamp := metav1.NewMicroTime(at)
			s.StartTime, s.RestartCount = &stamp, 4
		})
	}
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		want     int64
	}{
		"the first start is not a restart": {vmtest.ReportedVM(), started(vmtest.T0), 0},
		"the same run":                     {had(vmtest.T0), started(vmtest.T0), 4},
		"the same run, nanoseconds":        {had(vmtest.T0), started(vmtest.T0.Add(999 * time.Nanosecond)), 4},
		"another run":                      {had(vmtest.T0), started(vmtest.T0.Add(time.Second)), 5},
		"off, the last run is the same":    {had(vmtest.T0.Add(-time.Hour)), vmtest.Ended(0), 4},
		"gone":                             {had(vmtest.T0), vmtest.Gone(), 4},
		"never started":                    {had(vmtest.T0), started(time.Time{}), 4},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := statusOf(tc.vm.Obj(), tc.observed).RestartCount
			assert.True(t, got == tc.want, "got %d, want %d", got, tc.want)
		})
	}
}

// TestConditions shows each condition as T, F or U (unknown), and as - if it is
// absent.
func TestConditions(t *testing.T) {
	order := []string{api.ConditionReady, api.ConditionRunning, api.ConditionObserved, api.ConditionRestartRequired, api.ConditionDeletionBlocked, api.ConditionStalled}
	tests := map[string]struct {
		vm       *framework.VMBuilder
		observed inventory.Observation
		want     string
	}{
		"running":                {vmtest.ReportedVM(), vmtest.Present(driver.StateRunning), "TTT---"},
		"stopped on purpose":     {vmtest.ReportedVM().Action(api.ActionStopped), vmtest.Ended(0), "TFT---"},
		"being made":             {vmtest.ReportedVM(), vmtest.Gone(), "FFT---"},
		"a change waits":         {vmtest.ReportedVM().Status(vmtest.PendingRestart), vmtest.Present(driver.StateRunning), "FTTT--"},
		"the engine is away":     {vmtest.ReportedVM(), vmtest.Unknown(time.Minute), "UUF---"},
		"another engine answers": {vmtest.ReportedVM(), inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"}, "UUF---"},
		"stalled":                {vmtest.ReportedVM().Status(vmtest.Refused), vmtest.Gone(), "FFT--T"},
		"deletion, engine away":  {vmtest.ReportedVM().DeletionTimestamp(vmtest.T0), vmtest.Unknown(time.Minute), "FUF-T-"},
		"deletion under way":     {vmtest.ReportedVM().DeletionTimestamp(vmtest.T0), vmtest.Present(driver.StateStopping), "FFT---"},
		"deletion is no longer blocked": {vmtest.ReportedVM().DeletionTimestamp(vmtest.T0).Status(func(s *api.VirtualMachineStatus) {
			s.Conditions = []metav1.Condition{{Type: api.ConditionDeletionBlocked, Status: metav1.ConditionTrue}}
		}), vmtest.Present(driver.StateStopping), "FFT---"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			status := statusOf(tc.vm.Obj(), tc.observed)
			got := ""
			for _, kind := range order {
				if c := meta.FindStatusCondition(status.Conditions, kind); c == nil {
					got += "-"
				} else {
					got += string(c.Status)[:1]
				}
			}
			assert.True(t, got == tc.want, "got %s, want %s", got, tc.want)
			assert.Equal(t, "observedGeneration", status.ObservedGeneration, 2)
		})
	}
}

func TestOperationInStatus(t *testing.T) {
	op := statusOf(vmtest.ReportedVM().Obj(), vmtest.Present(driver.StateRunning)).Operation
	assert.True(t, op == nil, "at rest: %+v", op)
	op = statusOf(vmtest.ReportedVM().Obj(), vmtest.Gone()).Operation
	assert.True(t, op != nil && op.Type == api.OperationCreate && op.Epoch == 7 && op.StartedAt.Time.Equal(vmtest.T0), "a new one: %+v", op)
	vm := vmtest.ReportedVM().Action(api.ActionStopped).Status(vmtest.WithOperation(api.OperationStop, time.Second, "")).Obj()
	op = statusOf(vm, vmtest.Present(driver.StateStopping)).Operation
	assert.True(t, op != nil && op.StartedAt.Time.Equal(vmtest.T0.Add(-time.Second)), "one that continues: %+v", op)
}

func TestThrottleUntil(t *testing.T) {
	status := func(phase api.Phase, reason string, change ...func(*api.VirtualMachineStatus)) *api.VirtualMachineStatus {
		stamp := metav1.NewMicroTime(vmtest.T0)
		s := &api.VirtualMachineStatus{Phase: phase, Reason: reason, LastUpdateTime: &stamp}
		for _, fn := range change {
			fn(s)
		}
		return s
	}
	waits := func(s *api.VirtualMachineStatus) {
		retry := metav1.NewMicroTime(vmtest.T0.Add(time.Second))
		s.Operation = &api.Operation{Type: api.OperationCreate, NextRetryTime: &retry}
	}
	running := status(api.PhaseActive, api.ReasonRunning)
	restarting := status(api.PhaseActive, api.ReasonRestarting)
	fetching := status(api.PhaseCreating, api.ReasonFetching)
	restarted := func(s *api.VirtualMachineStatus) { s.RestartCount = 1 }
	starts := func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{State: string(driver.StateStarting)} }
	tests := map[string]struct {
		base, next *api.VirtualMachineStatus
		acted      bool
		want       time.Duration
	}{
		"a phase":                  {running, status(api.PhaseStopped, api.ReasonCompleted), false, 0},
		"the engine restarts it":   {running, restarting, false, restartPeriod},
		"the engine restarted it":  {restarting, running, false, restartPeriod},
		"it was restarted unseen":  {running, status(api.PhaseActive, api.ReasonRunning, restarted), false, restartPeriod},
		"a start after a crash":    {status(api.PhaseCreating, api.ReasonStarting, starts), status(api.PhaseActive, api.ReasonRunning, restarted), false, 0},
		"it crashes as it starts":  {status(api.PhaseCreating, api.ReasonStarting, starts), status(api.PhaseActive, api.ReasonRestarting, restarted), false, restartPeriod},
		"we started it":            {restarting, running, true, 0},
		"a requested restart":      {status(api.PhaseActive, api.ReasonRestarting, vmtest.WithOperation(api.OperationRestart, 0, "")), running, false, 0},
		"a creation goes well":     {status(api.PhaseCreating, api.ReasonCreating), status(api.PhaseCreating, api.ReasonStarting), true, progressPeriod},
		"a creation finds no node": {status(api.PhaseCreating, api.ReasonCreating), status(api.PhaseCreating, api.ReasonUnschedulable), true, progressPeriod},
		"a node is found":          {status(api.PhaseCreating, api.ReasonUnschedulable), status(api.PhaseCreating, api.ReasonStarting), true, progressPeriod},
		"a start goes on":          {status(api.PhaseCreating, api.ReasonStarting), status(api.PhaseCreating, api.ReasonStarting), true, progressPeriod},
		"a fetch has ended":        {fetching, status(api.PhaseCreating, api.ReasonStarting), true, 0},
		"a start after a stop":     {status(api.PhaseStopped, api.ReasonStoppedAsAsked), status(api.PhaseCreating, api.ReasonStarting), true, 0},
		"a created server runs":    {status(api.PhaseCreating, api.ReasonCreating), running, true, 0},
		"a creation failed":        {status(api.PhaseCreating, api.ReasonCreating), status(api.PhaseCreating, api.ReasonStarting, waits), true, 0},
		"a deletion goes on":       {status(api.PhaseTerminating, api.ReasonStopping), status(api.PhaseTerminating, "Removing"), true, progressPeriod},
		"a deletion failed":        {status(api.PhaseTerminating, api.ReasonStopping), status(api.PhaseTerminating, "Removing", waits), true, 0},
		"a fetch continues":        {fetching, fetching, false, progressPeriod},
		"a fetch begins":           {running, fetching, false, 0},
		"a creation fetches":       {status(api.PhaseCreating, api.ReasonCreating), fetching, false, 0},
		"a fetch of another kind":  {status(api.PhaseActive, api.ReasonFetching), fetching, false, 0},
		"a new spec":               {restarting, status(api.PhaseActive, api.ReasonRestarting, func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 3 }), false, 0},
		"written by a clock ahead": {status(api.PhaseCreating, api.ReasonFetching, func(s *api.VirtualMachineStatus) {
			ahead := metav1.NewMicroTime(vmtest.T0.Add(time.Hour))
			s.LastUpdateTime = &ahead
		}), fetching, false, 0},
		"nothing was written before": {&api.VirtualMachineStatus{Reason: api.ReasonRestarting}, running, false, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got time.Duration
			if until := throttleUntil(tc.base, tc.next, tc.acted, vmtest.T0, vmtest.T0); !until.IsZero() {
				got = until.Sub(vmtest.T0)
			}
			assert.Equal(t, "waits", got, tc.want)
		})
	}
}

// TestStagesThatLastAreReported checks that the time of a stage counts from when it was first seen, however
// long ago the status was written, and that the next stage counts from its beginning.
func TestStagesThatLastAreReported(t *testing.T) {
	stamp := metav1.NewMicroTime(vmtest.T0.Add(-time.Hour))
	vm := vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) {
		s.Phase, s.Reason, s.LastUpdateTime = api.PhaseTerminating, api.ReasonStopping, &stamp
	}).Obj()
	var seen stages
	for _, step := range []struct {
		after  time.Duration
		reason string
		want   time.Duration
	}{
		{0, "Removing", progressPeriod},
		{time.Second, "Removing", progressPeriod},
		{3 * time.Second, api.ReasonTerminating, 3*time.Second + progressPeriod},
		{4 * time.Second, api.ReasonStopping, 0},
		{5 * time.Second, "Removing", 5*time.Second + progressPeriod},
	} {
		now, next := vmtest.T0.Add(step.after), vm.Status.DeepCopy()
		next.Reason = step.reason
		until := throttleUntil(&vm.Status, next, true, seen.foundSince(vm, next, now), now)
		if want := vmtest.T0.Add(step.want); step.want != 0 && !until.Equal(want) || step.want == 0 && until.After(now) {
			t.Errorf("after %s, %s waits until %s, want %s", step.after, step.reason, until, want)
		}
	}
	seen.Forget(facttimes.KeyOf(vm))
	assert.Equal(t, "left of an object that is gone", seen.Get(facttimes.KeyOf(vm)), (stage{}))
}

// TestReportIsThrottled checks that a change that can wait is written at its time,
// not before.
func TestReportIsThrottled(t *testing.T) {
	stamp := metav1.NewMicroTime(vmtest.T0.Add(-time.Second))
	vm := vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) { s.LastUpdateTime = &stamp }).Obj()
	p := stepOf(vm, vmtest.Present(driver.StateRestarting))
	p.decision = p.r.decideFrom(p.facts)
	_, result, err := p.r.reportStatus(t.Context(), p.facts, p.decision)
	assert.True(t, err == nil && result.RequeueAfter == 9*time.Second, "%+v, %v: a client that is not there was to be left alone for 9 s", result, err)
}

// TestOwnStepsAreNotThrottled checks that a pass that did something, or has an event, writes
// at once what could wait otherwise.
func TestOwnStepsAreNotThrottled(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*step)
		writes int
	}{
		"nothing was done":  {func(*step) {}, 0},
		"a step was taken":  {func(p *step) { p.operation = api.OperationStart }, 1},
		"a step has failed": {func(p *step) { p.events = append(p.events, failureEvent(api.OperationStart, errors.New("boom"))) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.create(vmtest.ReportedVM())
			vm := g.vm()
			stamp := metav1.NewMicroTime(vmtest.T0.Add(-time.Second))
			vm.Status.LastUpdateTime, vm.Status.ObservedGeneration = &stamp, vm.Generation
			assert.NoError(t, g.api.Status().Update(t.Context(), vm))
			p := stepOf(vm, vmtest.Present(driver.StateRestarting))
			p.r = g.r
			p.decision = p.r.decideFrom(p.facts)
			tc.change(p)
			g.wantWrites(tc.writes, func() {
				if _, _, err := p.r.reportStatus(t.Context(), p.facts, p.decision); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestReportOfDeposedLeader checks that a process that may no longer lead writes nothing, and
// reports once it may.
func TestReportOfDeposedLeader(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.crashNow(0)
	g.deposed = errors.New("the Lease was not renewed in time")
	g.wantWrites(0, func() {
		result, err := g.pass()
		assert.True(t, err == nil && result.RequeueAfter == fencedRetry, "%+v, %v; want another pass after %s", result, err, fencedRetry)
	})
	g.deposed = nil
	g.clock.Step(time.Minute)
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
	at := g.vm().Status.LastUpdateTime
	assert.True(t, at != nil && at.Time.Equal(g.clock.Now()), "the status says that it was updated at %v, want %s", at, g.clock.Now())
}

// TestOwnWriteCountsBeforeTheCache checks that a pass continues from the last write, even if the
// cache does not have this write yet.
func TestOwnWriteCountsBeforeTheCache(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.takeOver()
	g.crashNow(0)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantWrites(0, func() { g.reconcile() })
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
}

// TestWriteThatTheAPIHasLost checks that a write counts no longer once the API does not have it, as after
// etcd was restored from a backup, while an API server that is behind makes no difference.
func TestWriteThatTheAPIHasLost(t *testing.T) {
	s := newStandby(t)
	s.epoch.Store(7)
	s.create(framework.NewVM("vm").Resource(api.ResourceCPU, "1"))
	s.eventually("the VM is active", func() bool { s.reconcile(); return s.vm().Status.Phase == api.PhaseActive })
	backup := s.vm()
	s.takeOver()
	s.edit(func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceCPU] = resource.MustParse("2") })
	s.cached = s.vm()
	s.reconcile()
	listed := event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: s.cached.DeepCopy(), ObjectNew: backup.DeepCopy()}
	s.cached = backup

	s.r.eventHandler().Update(t.Context(), listed, s.q)
	s.takeRequests(1)
	s.reconcile()
	got := s.server().Applied.CPUMilli
	assert.True(t, got == 2000, "after an old list the server has %d millicores, want 2000", got)

	s.r.Client.Live = interceptor.NewClient(s.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, vm client.Object, _ ...client.GetOption) error {
			backup.DeepCopyInto(vm.(*api.VirtualMachine)) //nolint:forcetypeassert // It reads nothing else.
			return nil
		},
	})
	s.reconcile()
	got = s.server().Applied.CPUMilli
	assert.True(t, got == 2000, "without a list the server has %d millicores, want 2000", got)
	s.r.eventHandler().Update(t.Context(), listed, s.q)
	s.takeRequests(1)
	s.reconcile()
	got = s.server().Applied.CPUMilli
	assert.True(t, got == 1000, "after the restore the server has %d millicores, want 1000", got)
}

// TestStatusOfALeaderBefore checks that a status of an earlier leader that comes to the cache late does
// not stay, while the writes of this process enqueue nothing.
func TestStatusOfALeaderBefore(t *testing.T) {
	s := newStandby(t)
	s.epoch.Store(7)
	s.create(framework.NewVM("vm"))
	created := s.vm()
	s.eventually("the VM is active", func() bool { s.reconcile(); return s.vm().Status.Phase == api.PhaseActive })
	own := s.vm()
	s.r.eventHandler().Update(t.Context(), event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: created, ObjectNew: own}, s.q)
	assert.Equal(t, "requests after an own write, want none", s.q.Len(), 0)

	late := own.DeepCopy()
	late.Status.Phase, late.Status.Reason = api.PhaseUnknown, api.ReasonEngineMismatch
	late.Status.LastUpdateTime = new(metav1.NewMicroTime(own.Status.LastUpdateTime.Add(-time.Second)))
	assert.NoError(t, s.api.Status().Update(t.Context(), late))
	s.r.eventHandler().Update(t.Context(), event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: own, ObjectNew: s.vm()}, s.q)
	n := s.q.Len()
	assert.Require(t, n == 1, "%d requests after a write of another process, want 1", n)
	s.reconcile()
	s.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestStatusChangedByHand checks that a status is repaired after someone else has changed it, even
// if it still has the time of this process's last write.
func TestStatusChangedByHand(t *testing.T) {
	for name, change := range map[string]func(*api.VirtualMachineStatus){
		"phase":        func(s *api.VirtualMachineStatus) { s.Phase, s.Reason = api.PhaseFailed, api.ReasonInvalid },
		"a condition":  func(s *api.VirtualMachineStatus) { s.Conditions[0].Status = metav1.ConditionFalse },
		"addresses":    func(s *api.VirtualMachineStatus) { s.Addresses = []string{"192.0.2.1"} },
		"no server":    func(s *api.VirtualMachineStatus) { s.Server = nil },
		"nothing left": func(s *api.VirtualMachineStatus) { *s = api.VirtualMachineStatus{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStandby(t)
			s.epoch.Store(7)
			s.create(framework.NewVM("vm"))
			s.reconcile()
			own := s.vm()
			vm := own.DeepCopy()
			change(&vm.Status)
			assert.NoError(t, s.api.Status().Update(t.Context(), vm))
			s.r.eventHandler().Update(t.Context(), event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: own, ObjectNew: s.vm()}, s.q)
			n := s.q.Len()
			assert.Require(t, n == 1, "%d requests after a write by hand, want 1", n)
			s.reconcile()
			got := s.vm()
			got.Status.LastUpdateTime = own.Status.LastUpdateTime
			assert.True(t, equality.Semantic.DeepEqual(got.Status, own.Status), "the status is\n%+v, want\n%+v", got.Status, own.Status)
		})
	}
}

// TestStatusChangedAtOnce checks that a status is repaired that someone changed before the API's
// answer to this process's write came, and that a status that the API stores otherwise than it
// was sent, as a webhook may have it, causes no other pass.
func TestStatusChangedAtOnce(t *testing.T) {
	for name, isStored := range map[string]bool{"by hand": false, "by the API": true} {
		t.Run(name, func(t *testing.T) {
			s := newStandby(t)
			s.epoch.Store(7)
			s.create(framework.NewVM("vm"))
			s.reconcile()
			s.setAction(api.ActionStopped)
			edited, changes := s.vm(), 0
			s.r.Client.Client = interceptor.NewClient(s.api, interceptor.Funcs{
				SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
					vm := obj.(*api.VirtualMachine) //nolint:forcetypeassert // It writes nothing else.
					if isStored {
						vm.Status.Message = "changed"
					}
					err := c.SubResource(sub).Update(ctx, vm, opts...)
					if changes++; err == nil && changes == 1 && !isStored {
						other := vm.DeepCopy()
						other.Status.Message = "changed"
						err = c.SubResource(sub).Update(ctx, other, opts...)
					}
					s.r.eventHandler().Update(ctx, event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: edited, ObjectNew: s.vm()}, s.q)
					return err
				},
			})
			s.reconcile()
			s.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
			assert.True(t, s.vm().Status.Message == "changed" == isStored, "the message is %q", s.vm().Status.Message)
			assert.Equal(t, "requests after an own write, want none", s.q.Len(), 0)
		})
	}
}

// TestWriteConfirmsTheObject checks that an object needs no live read once the API has accepted
// its status.
func TestWriteConfirmsTheObject(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(vmtest.ReportedVM())
	p := stepOf(g.vm(), vmtest.Gone())
	p.r = g.r
	p.r.Client.Live = interceptor.NewClient(g.api, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("the API is away")
		},
	})
	p.decision = p.r.decideFrom(p.facts)
	assert.True(t, p.confirmObject(t.Context()) != nil, "it was confirmed without a read")
	var err error
	p.facts, _, err = p.r.writeStatus(t.Context(), p.facts, p.decision)
	assert.NoError(t, err)
	assert.NoError(t, p.confirmObject(t.Context()))
}

// TestStatusWriteIsBounded checks the time limit of a write, and that its context ends with the write.
func TestStatusWriteIsBounded(t *testing.T) {
	g := newRig(t, fake.Options{})
	var callErr func() error // the error of its context
	var limit time.Duration
	g.r.Client.Client = interceptor.NewClient(g.api, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			deadline, _ := ctx.Deadline()
			callErr, limit = ctx.Err, time.Until(deadline)
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	assert.True(t, limit <= callTimeout && limit >= callTimeout/2, "a write may take %s, want %s", limit, callTimeout)
	assert.True(t, callErr() != nil, "the write's context goes on after it")
}

// awaitTimer waits until code waits for the clock.
func awaitTimer(t *testing.T, timers *testingclock.FakeClock) {
	t.Helper()
	err := assert.Poll(t.Context(), "a timer", func() error {
		return assert.ErrorUnless(timers.HasWaiters(), "there is none")
	})
	assert.ReportError(t, err)
}

// TestProgressIsReportedAfterItsDelay checks the instant, and that no timer is left.
func TestProgressIsReportedAfterItsDelay(t *testing.T) {
	p := stepOf(vmtest.ReportedVM().Obj(), vmtest.Gone())
	timers := framework.NewFakeClock(vmtest.T0)
	refused := make(chan struct{}, 1)
	p.r.Clock, p.r.MayAct = timers, func() error { refused <- struct{}{}; return errors.New("not now") }
	p.decision = p.r.decideFrom(p.facts)
	results, ended := make(chan outcome), make(chan struct{})
	go func() { defer close(ended); p.awaitOutcome(t.Context(), results) }()
	awaitTimer(t, timers)
	timers.Step(progressDelay - time.Nanosecond)
	assert.True(t, timers.HasWaiters(), "the progress is written earlier than after %s", progressDelay)
	timers.Step(time.Nanosecond)
	<-refused
	results <- outcome{}
	<-ended

	quick := make(chan outcome, 1)
	quick <- outcome{}
	p.awaitOutcome(t.Context(), quick)
	assert.True(t, !timers.HasWaiters(), "a timer is left of an action that took no time")
}

// TestProgressThatMayWait checks that progress of a deletion is not written while an action
// lasts, and that the action's outcome is returned.
func TestProgressThatMayWait(t *testing.T) {
	vm := vmtest.ReportedVM().DeletionTimestamp(vmtest.T0).Status(func(s *api.VirtualMachineStatus) {
		s.Phase = api.PhaseTerminating
	})
	p := stepOf(vm.Obj(), vmtest.Present(driver.StateRunning))
	timers := framework.NewFakeClock(vmtest.T0)
	p.r.Clock, p.r.MayAct = timers, func() error { t.Error("it is written"); return errors.New("not now") }
	p.decision = p.r.decideFrom(p.facts)
	results, failed := make(chan outcome), errors.New("stopping failed")
	go func() {
		awaitTimer(t, timers)
		timers.Step(progressDelay)
		results <- outcome{err: failed}
	}()
	got := p.awaitOutcome(t.Context(), results)
	assert.True(t, errors.Is(got.err, failed), "the outcome is %+v", got)
}

// TestPastWakeUpIsAtOnce checks that a wake-up in the past is not treated as none.
func TestPastWakeUpIsAtOnce(t *testing.T) {
	for _, at := range []time.Time{vmtest.T0.Add(-time.Second), vmtest.T0} {
		assert.Equal(t, fmt.Sprintf("for %s: after", at), resultAt(vmtest.T0, at).RequeueAfter, time.Millisecond)
	}
}

func TestTruncate(t *testing.T) {
	long := translate.Truncate(strings.Repeat("é", translate.MaxText))
	assert.True(t, len(long) <= translate.MaxText && utf8.ValidString(long) && strings.HasSuffix(long, "..."),
		"%d bytes, valid %v", len(long), utf8.ValidString(long))
	assert.True(t, translate.Truncate("short") == "short", "a short text was changed")
	n := truncateEvent(strings.Repeat("x", 5000))
	assert.True(t, len(n) == 1024, "an event of %d bytes", len(n))
}

func TestReasonOf(t *testing.T) {
	for want, err := range map[string]error{
		api.ReasonInvalid:          driver.Errorf(driver.ErrInvalid, "x"),
		api.ReasonUnsupported:      driver.Errorf(driver.ErrUnsupported, "x"),
		api.ReasonExhausted:        driver.Errorf(driver.ErrExhausted, "x"),
		api.ReasonOperationFailed:  errors.New("x"),
		api.ReasonNameConflict:     driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry, "x")),
		api.ReasonImageUnavailable: driver.WithReason(driver.ReasonImageUnavailable, errors.New("x")),
	} {
		assert.Equal(t, fmt.Sprintf("%v", err), reasonOf(err), want)
	}
}

// TestReportRequeuesWithStepsLeft checks that a pass that ran out of steps is
// followed by another.
func TestReportRequeuesWithStepsLeft(t *testing.T) {
	r := &Reconciler{Clock: framework.NewFakeClock(vmtest.T0)}
	known := facts{base: vmtest.ReportedVM().Obj()}
	decision := policy.Decision{Action: policy.Action{Step: policy.StepEnsure}, Status: policy.StatusIntent{Unchanged: true}}
	_, result, err := r.reportStatus(t.Context(), known, decision)
	assert.True(t, err == nil && result.RequeueAfter != 0, "%+v, %v", result, err)
}

// TestPortsInStatus checks that ports have the spec's names, whatever host port was
// chosen.
func TestPortsInStatus(t *testing.T) {
	tcp := func(name string, port, hostPort int32) api.Port {
		return api.Port{Name: name, Protocol: api.ProtocolTCP, Port: port, HostPort: hostPort}
	}
	spec := []api.Port{tcp("any", 80, 0), tcp("fixed", 80, 8080), {Name: "dns", Protocol: api.ProtocolUDP, Port: 53}, tcp("waits", 90, 9090)}
	open := []driver.Port{
		{Protocol: "TCP", Port: 53, HostPort: 5353},
		{Protocol: "UDP", Port: 53, HostPort: 5354},
		{Protocol: "TCP", Port: 80, HostPort: 8080},
		{Protocol: "TCP", Port: 80, HostPort: 32768},
		{Protocol: "TCP", Port: 90, HostPort: 9191},
	}
	vm := vmtest.ReportedVM().Spec(func(s *api.VirtualMachineSpec) { s.Ports = spec }).Obj()
	up := vmtest.ChangeServer(vmtest.Present(driver.StateRunning), func(s *driver.Server) { s.Ports = open })
	status := statusOf(vm, up)
	want := []string{" TCP 53 5353", "dns UDP 53 5354", "fixed TCP 80 8080", "any TCP 80 32768", " TCP 90 9191"}
	var got []string
	for _, p := range status.Ports {
		got = append(got, fmt.Sprintf("%s %s %d %d", p.Name, p.Protocol, p.Port, p.HostPort))
	}
	assert.True(t, strings.Join(got, ",") == strings.Join(want, ","), "got %q, want %q", got, want)
	vm.Status = status
	off := statusOf(vm, vmtest.Present(driver.StateStopped))
	assert.True(t, off.Ports == nil, "off it has %+v", off.Ports)
	away := statusOf(vm, vmtest.Unknown(time.Minute))
	assert.True(t, len(away.Ports) == len(want), "while the engine is away it has %+v, want what was known", away.Ports)
}

// TestFailureWithAnotherEngine checks that a call that fails while another engine has replaced the
// VM's engine says nothing about the server, and does not count.
func TestFailureWithAnotherEngine(t *testing.T) {
	vm := vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{ID: "fake-1"} }).Obj()
	p := stepOf(vm, inventory.Observation{Answer: inventory.Gone, EngineID: "engine-2"})
	p.decision.Action = policy.Action{Step: policy.StepDelete, Operation: api.OperationDelete}
	p.recordFailure(errors.New("boom"))
	assert.True(t, p.vm.Status.Server != nil && p.vm.Status.Operation == nil, "the status is %+v", p.vm.Status)
}
