// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"errors"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/framework/rules"
)

// judge observes all changes and checks the rules.
type judge struct {
	environment *environment
	violations  []rules.Violation
	epoch       uint64
	holders     []string
	// renewed is the time at which each process sent its last successful renewal.
	renewed map[*process]time.Time
	history map[types.UID][]moment
	// specs has the time at which each generation was written.
	specs   map[types.UID]map[int64]time.Time
	creates map[types.UID]int
	runs    map[types.UID][]string
	foreign *fake.Record
	checked int // index into the API's log

	recorders []*recorder.Recorder // of all processes so far
}

// moment is the state of a server from a time on.
type moment struct {
	at     time.Time
	record *fake.Record
}

func newJudge(env *environment) *judge {
	return &judge{
		environment: env, renewed: map[*process]time.Time{}, history: map[types.UID][]moment{}, specs: map[types.UID]map[int64]time.Time{},
		creates: map[types.UID]int{}, runs: map[types.UID][]string{},
	}
}

func (j *judge) violate(rule rules.Rule, format string, args ...any) {
	j.report(rules.Broken(rule, format, args...))
}

func (j *judge) report(broken ...rules.Violation) {
	for _, v := range broken {
		j.environment.trace("VIOLATION %s", v)
	}
	j.violations = append(j.violations, broken...)
}

// callBegins checks that a process that begins a call to the engine holds the Lease.
func (j *judge) callBegins(p *process) {
	j.environment.gate.mu.Lock()
	defer j.environment.gate.mu.Unlock()
	if p.clock.behind.Load() > 0 || p.isDead() {
		return // the process cannot know that it does not lead: only the fence stops it
	}
	if since := time.Since(j.renewed[p]); since > settings().Lease {
		j.violate(rules.OneLeader, "%s calls the engine %s after its last renewal", p.name, since)
	}
}

// leaseWritten checks a write of the Lease that a process sent at a time.
func (j *judge) leaseWritten(p *process, before, holder string, sent time.Time) {
	for other, renewed := range j.renewed {
		if other.name == before && before != p.name && time.Since(renewed) < settings().Lease {
			j.violate(rules.OneLeader, "%s writes %q into the Lease that %s renewed %s before", p.name, holder, before, time.Since(renewed))
		}
	}
	if holder == p.name {
		j.renewed[p] = sent
	}
	if holder != "" && !slices.Contains(j.holders, holder) {
		j.holders = append(j.holders, holder)
	}
}

func findRecord(all []fake.Record, uid types.UID) *fake.Record {
	n := slices.IndexFunc(all, func(r fake.Record) bool { return r.UID == uid && !r.Retained })
	if n < 0 {
		return nil
	}
	return &all[n]
}

// engineCalled checks the effect of a call to the engine.
func (j *judge) engineCalled(p *process, method string, t driver.Target, records []fake.Record, err error) {
	before, after := findRecord(records, t.UID), findRecord(j.environment.memory.Records(), t.UID)
	if errors.Is(err, driver.ErrFenced) {
		j.environment.faults.count("calls refused by the fence")
	}
	if err != nil {
		return
	}
	if t.Epoch < j.epoch {
		j.violate(rules.OneLeader, "%s of %s with epoch %d is accepted after %d", method, p.name, t.Epoch, j.epoch)
	}
	j.epoch = max(j.epoch, t.Epoch)
	j.history[t.UID] = append(j.history[t.UID], moment{time.Now(), after})
	switch {
	case before == nil && after != nil:
		j.created(p, t.UID)
	case before != nil && after == nil:
		j.deleted(p, t.UID)
	}
	if after != nil && after.Run != "" && !slices.Contains(j.runs[t.UID], after.Run) {
		j.runs[t.UID] = append(j.runs[t.UID], after.Run)
	}
}

// otherCalled checks that a call has not created a server on the other engine, unless the engines
// were exchanged just before: later the process should have noticed the other id.
func (j *judge) otherCalled(p *process, began time.Time) {
	if all := j.environment.other.Records(); len(all) > 0 && began.Sub(j.environment.exchangedAt) > identityTime {
		j.violate(rules.OthersUntouched, "%s has created %s on the other engine %s after the exchange", p.name, all[0].ID, began.Sub(j.environment.exchangedAt))
	}
	for _, r := range j.environment.other.Records() {
		j.environment.other.Remove(r.UID)
	}
}

// identityTime is how old a process's knowledge of the engine's id may be when it begins a change.
const identityTime = 2 * engineTimeout

func (j *judge) created(p *process, uid types.UID) {
	j.creates[uid]++
	if j.creates[uid] > 1 {
		j.violate(rules.OneServer, "%s creates the server of %s, which is creation %d", p.name, shortUID(uid), j.creates[uid])
	}
	if !slices.ContainsFunc(j.environment.api.log, func(c change) bool {
		return c.object.GetUID() == uid && controllerutil.ContainsFinalizer(c.object, api.FinalizerServer)
	}) {
		j.violate(rules.ServerPresent, "%s creates the server of %s before its finalizer", p.name, shortUID(uid))
	}
	if j.environment.objectOf(uid) == nil && !j.environment.users.wanted[uid].forced {
		j.violate(rules.ServerPresent, "%s creates the server of %s, whose VirtualMachine is gone", p.name, shortUID(uid))
	}
}

func (j *judge) deleted(p *process, uid types.UID) {
	if vm := j.environment.objectOf(uid); vm != nil && vm.DeletionTimestamp == nil {
		j.violate(rules.OneServer, "%s removes the server of %s, which no user has deleted", p.name, vm.Name)
	}
}

// objectOf returns the VirtualMachine with a UID, or nil.
func (env *environment) objectOf(uid types.UID) *api.VirtualMachine {
	for _, object := range env.api.objects {
		if vm, ok := object.(*api.VirtualMachine); ok && vm.UID == uid {
			return vm
		}
	}
	return nil
}

// followAPI checks the changes in the API since the last call.
func (j *judge) followAPI() {
	j.checkForeign()
	for ; j.checked < len(j.environment.api.log); j.checked++ {
		vm, ok := j.environment.api.log[j.checked].object.(*api.VirtualMachine)
		if !ok {
			continue
		}
		if j.specs[vm.UID] == nil {
			j.specs[vm.UID] = map[int64]time.Time{}
		}
		if _, known := j.specs[vm.UID][vm.Generation]; !known {
			j.specs[vm.UID][vm.Generation] = time.Now()
		}
		if vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer) && !j.environment.users.wanted[vm.UID].forced && findRecord(j.environment.memory.Records(), vm.UID) != nil {
			j.violate(rules.ServerPresent, "%s loses its finalizer while its server exists", vm.Name)
		}
	}
}

// hadState reports whether a server had a matching state at any time since a time.
func (j *judge) hadState(uid types.UID, since time.Time, ok func(driver.State, *fake.Record) bool) bool {
	all, now := j.history[uid], time.Now()
	for n, m := range all {
		end := now
		if n+1 < len(all) {
			end = all[n+1].at
		}
		if m.record == nil || end.Before(since) {
			continue
		}
		for _, at := range []time.Time{m.at, m.record.UpAt, m.record.StopsAt, end} {
			if !at.Before(since) && !at.Before(m.at) && !at.After(end) && ok(rules.StateAt(m.record, at), m.record) {
				return true
			}
		}
	}
	return false
}

// statusWritten checks the claims of a status.
func (j *judge) statusWritten(p *process, before, vm *api.VirtualMachine) {
	was := before.Status.DeepCopy()
	was.LastUpdateTime = vm.Status.LastUpdateTime
	if reflect.DeepEqual(was, &vm.Status) {
		j.violate(rules.QuietAtRest, "%s writes the status of %s, in which nothing has changed", p.name, vm.Name)
	}
	s := vm.Status.Server
	if s != nil && s.ID != "" && !j.hadState(vm.UID, j.environment.began, func(state driver.State, r *fake.Record) bool {
		return r.ID == s.ID && string(state) == s.State
	}) {
		j.violate(rules.StatusTrue, "%s reports server %s of %s as %s, a state that it never had", p.name, s.ID, vm.Name, s.State)
	}
	if s == nil && before.Status.Server != nil && !slices.ContainsFunc(j.history[vm.UID], func(m moment) bool { return m.record == nil }) {
		j.violate(rules.StatusTrue, "%s reports that the server of %s is gone, but it always existed: %s", p.name, vm.Name, vm.Status.Message)
	}
	if !rules.IsReady(vm) || vm.DeletionTimestamp != nil {
		return
	}
	since := j.specs[vm.UID][vm.Status.ObservedGeneration]
	if !j.hadState(vm.UID, since, func(state driver.State, r *fake.Record) bool {
		return state == rules.WantedState(vm.Spec.Action) && r.CPUMilli == vm.Spec.Resource.Cpu().MilliValue()
	}) {
		j.violate(rules.StatusTrue, "%s reports %s as Ready for generation %d, but its server was never in the state of that spec", p.name, vm.Name, vm.Status.ObservedGeneration)
	}
}

// checkApplied returns an error unless a VirtualMachine's spec is applied to its server and status.
func (j *judge) checkApplied(vm *api.VirtualMachine) error {
	if vm.DeletionTimestamp != nil {
		return errors.New("it is being deleted")
	}
	r := findRecord(j.environment.memory.Records(), vm.UID)
	if r == nil {
		return rules.CheckApplied(vm, nil)
	}
	return rules.CheckApplied(vm, new(rules.ServerOf(r, time.Now())))
}

// unsettled returns a violation that exists as long as Drover has work left, or nil.
func (j *judge) unsettled() *rules.Violation {
	for _, object := range j.environment.api.list(vms, j.environment.api.version) {
		vm, rule := object.(*api.VirtualMachine), rules.Converges //nolint:forcetypeassert // of this resource
		if vm.DeletionTimestamp != nil {
			rule = rules.DeletionEnds
		}
		if err := j.checkApplied(vm); err != nil {
			return new(rules.Broken(rule, "%s: %v", vm.Name, err))
		}
	}
	for _, r := range j.environment.memory.Records() {
		if !r.Retained && r.UID != foreignUID && j.environment.objectOf(r.UID) == nil {
			return new(rules.Broken(rules.NoOrphans, "the server %s of %s lacks a VirtualMachine", r.ID, r.Name))
		}
	}
	return nil
}

// foreignUID is the UID of a server of another cluster on the same engine.
const foreignUID types.UID = "99999999-0000-4000-8000-000000000000"

// addForeign adds a server that is not Drover's.
func (j *judge) addForeign() error {
	err := j.environment.memory.Edit(foreignUID, func(r *fake.Record) { r.ClusterID, r.State, r.Name = "another", driver.StateRunning, "other" })
	j.foreign = findRecord(j.environment.memory.Records(), foreignUID)
	return err
}

// checkForeign checks that the server of another cluster is unchanged.
func (j *judge) checkForeign() {
	if have := findRecord(j.environment.memory.Records(), foreignUID); !reflect.DeepEqual(have, j.foreign) {
		j.violate(rules.OthersUntouched, "the server of another cluster is now %+v, and was %+v", have, j.foreign)
	}
}

// checkOutcome checks the number of creations, removals and starts.
func (j *judge) checkOutcome() {
	for uid, want := range j.environment.users.wanted {
		vm := j.environment.objectOf(uid)
		if vm != nil && !want.deleted {
			j.environment.users.settlePending(vm, want)
		}
		if vm == nil && !want.deleted {
			j.violate(rules.AsRequested, "%s is gone, and no user has deleted it", want.Name)
		} else {
			j.report(want.CheckStarts(uid, len(j.runs[uid]))...)
		}
		if !want.forced { // otherwise the sweep removes the server
			j.checkRelease(uid, want)
		}
	}
}

// checkRelease checks that a server was released if that was requested.
func (j *judge) checkRelease(uid types.UID, want *wanted) {
	retained := slices.ContainsFunc(j.environment.memory.Records(), func(r fake.Record) bool { return r.UID == uid && r.Retained })
	if retained && !want.retain || !retained && want.deleted && want.retain && j.creates[uid] > 0 && !want.lost {
		j.violate(rules.AsRequested, "the server of %s is released: %v; requested: %v", want.Name, retained, want.retain)
	}
}

// newRecorder returns a recorder of a process's decisions, which remains after the process has ended.
func (p *process) newRecorder(epoch func() uint64) *recorder.Recorder {
	r := recorder.New(recorder.Options{Replica: p.name, Version: "schedules", Epoch: epoch, Clock: p.clock})
	p.environment.judge.recorders = append(p.environment.judge.recorders, r)
	return r
}

// decisions returns the recorded decisions of all processes, the newest last.
func (j *judge) decisions() (all []decisions.Record) {
	for _, name := range j.environment.users.names {
		for _, r := range j.recorders {
			all = append(all, r.History(client.ObjectKey{Namespace: "default", Name: name}).Decisions...)
		}
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return all
}

// replayDecisions derives decisions again, and checks that they are the same.
func (j *judge) replayDecisions(all []decisions.Record) {
	j.environment.faults.counts["decisions derived again"] += len(all)
	j.report(rules.CheckDecisions(all)...)
}
