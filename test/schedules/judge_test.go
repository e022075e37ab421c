// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/decisions/recorder"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	frameworkusers "cloudnative.tw/drover/test/framework/users"
)

// Rule is a condition that must hold.
type Rule string

// The rules.
const (
	RuleOneServer   Rule = "O1: each VirtualMachine has its server, and each server its VirtualMachine"
	RuleNoOrphan    Rule = "O2: no server is without a VirtualMachine for longer than the grace period"
	RuleNeverTwo    Rule = "O3: one server for a UID, created once and not lost"
	RuleTerminating Rule = "O4: nothing is terminating for long"
	RuleEpochs      Rule = "O5: no change below the highest epoch"
	RuleGuard       Rule = "O5: no call begins without the Lease"
	RuleLease       Rule = "O5: no process takes a Lease from a holder that may act"
	RuleForeign     Rule = "O6: what is not Drover's is untouched"
	RuleOutcome     Rule = "O7: as without faults"
	RuleRest        Rule = "O8: no write at rest"
	RuleConverges   Rule = "O10: all converges"
	RuleObserved    Rule = "O11: a status claims what was observed"
	RuleReplays     Rule = "O14: a record of a decision is enough to derive it again"
)

// Violation is a breach of a rule.
type Violation struct {
	Rule Rule
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s", v.Rule, v.Text) }

// judge watches what happens and compares it with the rules.
type judge struct {
	world      *world
	violations []Violation
	epoch      uint64
	holders    []string
	// renewed is when each process sent its last successful renewal.
	renewed map[*process]time.Time
	history map[types.UID][]moment
	// specs has when each generation was written.
	specs   map[types.UID]map[int64]time.Time
	creates map[types.UID]int
	deletes map[types.UID]int
	runs    map[types.UID][]string
	foreign *fake.Record
	checked int // index into the API's log

	recorders []*recorder.Recorder // of all processes so far
}

// moment is a server from a time on.
type moment struct {
	at     time.Time
	record *fake.Record
}

func newJudge(w *world) *judge {
	return &judge{
		world: w, renewed: map[*process]time.Time{}, history: map[types.UID][]moment{}, specs: map[types.UID]map[int64]time.Time{},
		creates: map[types.UID]int{}, deletes: map[types.UID]int{}, runs: map[types.UID][]string{},
	}
}

func (j *judge) violate(rule Rule, format string, args ...any) {
	v := Violation{rule, fmt.Sprintf(format, args...)}
	j.world.trace("VIOLATION %s", v)
	j.violations = append(j.violations, v)
}

// callBegins checks that a process that begins a call to the engine holds the Lease.
func (j *judge) callBegins(p *process) {
	j.world.gate.mu.Lock()
	defer j.world.gate.mu.Unlock()
	if p.clock.behind.Load() > 0 || p.isDead() {
		return // such a process cannot know, and only the fence stops it
	}
	if since := time.Since(j.renewed[p]); since > settings().Lease {
		j.violate(RuleGuard, "%s calls the engine %s after its last renewal", p.name, since)
	}
}

// leaseWritten checks a write of the Lease, which a process sent at some time.
func (j *judge) leaseWritten(p *process, before, holder string, sent time.Time) {
	for other, renewed := range j.renewed {
		if other.name == before && before != p.name && time.Since(renewed) < settings().Lease {
			j.violate(RuleLease, "%s writes %q into the Lease that %s renewed %s before", p.name, holder, before, time.Since(renewed))
		}
	}
	if holder == p.name {
		j.renewed[p] = sent
	}
	if holder != "" && !slices.Contains(j.holders, holder) {
		j.holders = append(j.holders, holder)
	}
}

func find(all []fake.Record, uid types.UID) *fake.Record {
	n := slices.IndexFunc(all, func(r fake.Record) bool { return r.UID == uid && !r.Retained })
	if n < 0 {
		return nil
	}
	return &all[n]
}

// engineCalled checks a call that the engine has carried out.
func (j *judge) engineCalled(p *process, method string, t driver.Target, records []fake.Record, err error) {
	before, after := find(records, t.UID), find(j.world.memory.Records(), t.UID)
	if errors.Is(err, driver.ErrFenced) {
		j.world.faults.count("calls refused by the fence")
	}
	if err != nil {
		return
	}
	if t.Epoch < j.epoch {
		j.violate(RuleEpochs, "%s of %s with epoch %d is accepted after %d", method, p.name, t.Epoch, j.epoch)
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

// otherCalled checks a call that the other engine has carried out: a process that calls it must
// have read its id, unless that was just exchanged.
func (j *judge) otherCalled(p *process, began time.Time) {
	if all := j.world.other.Records(); len(all) > 0 && began.Sub(j.world.exchangedAt) > identityTime {
		j.violate(RuleForeign, "%s has created %s on another engine, which was there for %s", p.name, all[0].ID, began.Sub(j.world.exchangedAt))
	}
	for _, r := range j.world.other.Records() {
		j.world.other.Remove(r.UID)
	}
}

// identityTime is how old the id of an engine may be when a change begins.
const identityTime = 2 * engineTimeout

func (j *judge) created(p *process, uid types.UID) {
	j.creates[uid]++
	if j.creates[uid] > 1 {
		j.violate(RuleNeverTwo, "%s creates the server of %s for the %d. time", p.name, shortUID(uid), j.creates[uid])
	}
	if !slices.ContainsFunc(j.world.api.log, func(c change) bool {
		return c.object.GetUID() == uid && controllerutil.ContainsFinalizer(c.object, api.FinalizerServer)
	}) {
		j.violate(RuleOneServer, "%s creates the server of %s before its finalizer", p.name, shortUID(uid))
	}
	if j.world.objectOf(uid) == nil && !j.world.users.wanted[uid].forced {
		j.violate(RuleOneServer, "%s creates the server of %s, whose VirtualMachine is gone", p.name, shortUID(uid))
	}
}

func (j *judge) deleted(p *process, uid types.UID) {
	j.deletes[uid]++
	if vm := j.world.objectOf(uid); vm != nil && vm.DeletionTimestamp == nil {
		j.violate(RuleNeverTwo, "%s removes the server of %s, which no user has deleted", p.name, vm.Name)
	}
}

// objectOf returns the VirtualMachine of a UID.
func (w *world) objectOf(uid types.UID) *api.VirtualMachine {
	for _, object := range w.api.objects {
		if vm, ok := object.(*api.VirtualMachine); ok && vm.UID == uid {
			return vm
		}
	}
	return nil
}

// followAPI checks the changes of objects since the last call.
func (j *judge) followAPI() {
	j.checkForeign()
	for ; j.checked < len(j.world.api.log); j.checked++ {
		vm, ok := j.world.api.log[j.checked].object.(*api.VirtualMachine)
		if !ok {
			continue
		}
		if j.specs[vm.UID] == nil {
			j.specs[vm.UID] = map[int64]time.Time{}
		}
		if _, known := j.specs[vm.UID][vm.Generation]; !known {
			j.specs[vm.UID][vm.Generation] = time.Now()
		}
		if vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer) && !j.world.users.wanted[vm.UID].forced && find(j.world.memory.Records(), vm.UID) != nil {
			j.violate(RuleOneServer, "%s loses its finalizer while its server exists", vm.Name)
		}
	}
}

// stateAt is the state that a record has at a time.
func stateAt(r *fake.Record, at time.Time) driver.State {
	switch {
	case r == nil:
		return ""
	case r.State == driver.StateRunning && at.Before(r.UpAt):
		return driver.StateStarting
	case r.State == driver.StateStopping && !r.StopsAt.IsZero() && !at.Before(r.StopsAt):
		return driver.StateStopped
	}
	return r.State
}

// hadState reports whether a server was in a state at some time since another.
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
			if !at.Before(since) && !at.Before(m.at) && !at.After(end) && ok(stateAt(m.record, at), m.record) {
				return true
			}
		}
	}
	return false
}

// statusWritten checks what a status claims.
func (j *judge) statusWritten(p *process, before, vm *api.VirtualMachine) {
	was := before.Status.DeepCopy()
	was.LastUpdateTime = vm.Status.LastUpdateTime
	if reflect.DeepEqual(was, &vm.Status) {
		j.violate(RuleRest, "%s writes the status of %s, in which nothing has changed", p.name, vm.Name)
	}
	s := vm.Status.Server
	if s != nil && s.ID != "" && !j.hadState(vm.UID, j.world.began, func(state driver.State, r *fake.Record) bool {
		return r.ID == s.ID && string(state) == s.State
	}) {
		j.violate(RuleObserved, "%s reports %s of %s as %s, which it never was", p.name, s.ID, vm.Name, s.State)
	}
	if s == nil && before.Status.Server != nil && !slices.ContainsFunc(j.history[vm.UID], func(m moment) bool { return m.record == nil }) {
		j.violate(RuleObserved, "%s reports that the server of %s is gone, which it never was: %s", p.name, vm.Name, vm.Status.Message)
	}
	if !isReady(vm) || vm.DeletionTimestamp != nil {
		return
	}
	since := j.specs[vm.UID][vm.Status.ObservedGeneration]
	if !j.hadState(vm.UID, since, func(state driver.State, r *fake.Record) bool {
		return state == wantedState(vm) && r.CPUMilli == vm.Spec.Resource.Cpu().MilliValue()
	}) {
		j.violate(RuleObserved, "%s reports %s as Ready for generation %d, and its server was not as that says", p.name, vm.Name, vm.Status.ObservedGeneration)
	}
}

func isReady(vm *api.VirtualMachine) bool {
	return slices.ContainsFunc(vm.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == api.ConditionReady && c.Status == "True" && c.ObservedGeneration == vm.Generation
	})
}

func wantedState(vm *api.VirtualMachine) driver.State {
	return map[api.Action]driver.State{
		api.ActionActive: driver.StateRunning, api.ActionStopped: driver.StateStopped, api.ActionPaused: driver.StatePaused,
	}[vm.Spec.Action]
}

// isApplied reports whether a VirtualMachine's server and status are as its spec says.
func (j *judge) isApplied(vm *api.VirtualMachine) bool { return j.unapplied(vm) == "" }

func (j *judge) unapplied(vm *api.VirtualMachine) string {
	if vm.DeletionTimestamp != nil {
		return vm.Name + " is being deleted"
	}
	if err := frameworkusers.CheckApplied(vm); err != nil {
		return fmt.Sprintf("%s: %v", vm.Name, err)
	}
	server := find(j.world.memory.Records(), vm.UID)
	switch {
	case server == nil:
		return vm.Name + " has no server"
	case stateAt(server, time.Now()) != wantedState(vm):
		return fmt.Sprintf("the server of %s is %s, for action %s", vm.Name, stateAt(server, time.Now()), vm.Spec.Action)
	case server.CPUMilli != vm.Spec.Resource.Cpu().MilliValue():
		return fmt.Sprintf("the server of %s has %dm of CPU", vm.Name, server.CPUMilli)
	case vm.Status.Server == nil || vm.Status.Server.ID != server.ID:
		return fmt.Sprintf("the server of %s is %s, and the status says otherwise", vm.Name, server.ID)
	}
	return ""
}

// unsettled returns why something has yet to be done, or "".
func (j *judge) unsettled() string {
	for _, object := range j.world.api.list(vms, j.world.api.version) {
		if why := j.unapplied(object.(*api.VirtualMachine)); why != "" { //nolint:forcetypeassert // of this resource
			return why
		}
	}
	for _, r := range j.world.memory.Records() {
		if !r.Retained && r.UID != foreignUID && j.world.objectOf(r.UID) == nil {
			return "the server " + r.ID + " of " + r.Name + " has no VirtualMachine"
		}
	}
	return ""
}

// unsettledRule is the rule that something left undone breaks.
func (j *judge) unsettledRule() Rule {
	for _, object := range j.world.api.list(vms, j.world.api.version) {
		vm := object.(*api.VirtualMachine) //nolint:forcetypeassert // of this resource
		switch {
		case vm.DeletionTimestamp != nil:
			return RuleTerminating
		case !j.isApplied(vm):
			return RuleConverges
		}
	}
	return RuleNoOrphan
}

// foreignUID is that of a server of another cluster on the same engine.
const foreignUID types.UID = "99999999-0000-4000-8000-000000000000"

// addForeign adds a server that is not Drover's.
func (j *judge) addForeign() error {
	err := j.world.memory.Edit(foreignUID, func(r *fake.Record) { r.ClusterID, r.State, r.Name = "another", driver.StateRunning, "other" })
	j.foreign = find(j.world.memory.Records(), foreignUID)
	return err
}

// checkForeign checks that what is not Drover's is as it was.
func (j *judge) checkForeign() {
	if have := find(j.world.memory.Records(), foreignUID); !reflect.DeepEqual(have, j.foreign) {
		j.violate(RuleForeign, "a server of another cluster is %+v, and was %+v", have, j.foreign)
	}
}

// checkOutcome checks the number of creations, removals and starts.
func (j *judge) checkOutcome() {
	for uid, want := range j.world.users.wanted {
		vm, runs := j.world.objectOf(uid), len(j.runs[uid])
		if vm != nil && !want.deleted {
			j.world.users.settlePending(vm, want)
		}
		switch {
		case vm == nil && !want.deleted:
			j.violate(RuleOutcome, "%s is gone, and no user has deleted it", want.name)
		case runs < want.atLeast || runs > want.atMost:
			j.violate(RuleOutcome, "%s (%s) was started %d times (%v), and %d to %d times were requested", want.name, shortUID(uid), runs, j.runs[uid], want.atLeast, want.atMost)
		}
		if !want.forced { // the sweep removes what its user has left
			j.checkRelease(uid, want)
		}
	}
}

// checkRelease checks that a server was released if that was requested.
func (j *judge) checkRelease(uid types.UID, want *wanted) {
	retained := slices.ContainsFunc(j.world.memory.Records(), func(r fake.Record) bool { return r.UID == uid && r.Retained })
	if retained && !want.retain || !retained && want.deleted && want.retain && j.creates[uid] > 0 && !want.lost {
		j.violate(RuleOutcome, "the server of %s is released: %v; requested: %v", want.name, retained, want.retain)
	}
}
