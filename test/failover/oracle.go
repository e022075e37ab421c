// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/framework/users"
)

// Evidence is the complete input of the oracle.
type Evidence struct {
	// Journal is the fake engine's, in its order.
	Journal []journal.Entry
	// Processes are all processes of replicas that ever ran.
	Processes []Process
	Faults    []Fault
	// Requested is what users requested, for all VirtualMachines that ever existed.
	Requested map[types.UID]users.Requested
	// Observations are reads of VirtualMachines whose server had been created.
	Observations []Observation
	// VMs and Servers are those that exist at the end.
	VMs     map[types.UID]*api.VirtualMachine
	Servers map[types.UID]*fake.Record
}

// Process is a process of a replica, from its start to its end, which is zero while
// it runs.
type Process struct {
	Replica  string
	PID      int
	From, To time.Time
}

// Observation is a VirtualMachine as the API had it at some time after Since.
type Observation struct {
	UID       types.UID
	Since     time.Time
	Finalizer bool
}

// Rule is a condition that must hold.
type Rule string

// The rules.
const (
	// RuleEpochOrder says that for each server, accepted epochs never decrease.
	RuleEpochOrder Rule = "epochs never decrease"
	// RuleCreatedOnce says that for each UID one server is created, once.
	RuleCreatedOnce Rule = "one server, created once"
	// RuleNothingLost says that a server stays as the last change left it, and is removed
	// only if a user requested that.
	RuleNothingLost Rule = "nothing is lost"
	// RuleStartCount says that a server is started as often as users requested.
	RuleStartCount Rule = "started as often as requested"
	// RuleFinalizerFirst says that the finalizer exists before the server.
	RuleFinalizerFirst Rule = "the finalizer comes first"
	// RuleFinalState says that the final state is as users left it.
	RuleFinalState Rule = "all as requested at the end"
)

// Violation is a breach of a rule.
type Violation struct {
	Rule Rule
	UID  types.UID
	Text string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Rule, v.UID, v.Text) }

// Judge returns the rules that were broken.
func Judge(e Evidence) []Violation {
	var all []Violation
	servers := byServer(e.Journal)
	for _, uid := range slices.Sorted(maps.Keys(servers)) {
		s := e.traceServer(uid, servers[uid])
		all = slices.Concat(all, epochDecreases(uid, servers[uid]), s.violations, e.checkCreation(s), e.checkStarts(s), e.checkRequested(s))
	}
	return slices.Concat(all, e.checkFinalizers(), e.checkFinalState())
}

// byServer returns the journal of each server, without the calls that were refused.
func byServer(entries []journal.Entry) map[types.UID][]journal.Entry {
	servers := map[types.UID][]journal.Entry{}
	for _, entry := range entries {
		if entry.Action != journal.ActionRefused {
			servers[entry.UID] = append(servers[entry.UID], entry)
		}
	}
	return servers
}

// EpochDecreases returns changes of a leader that were accepted after one of a later
// leader.
func EpochDecreases(entries []journal.Entry) []Violation {
	var all []Violation
	for uid, entries := range byServer(entries) {
		all = append(all, epochDecreases(uid, entries)...)
	}
	return all
}

func epochDecreases(uid types.UID, entries []journal.Entry) []Violation {
	var all []Violation
	var last journal.Entry
	for _, entry := range entries {
		if entry.Epoch < last.Epoch {
			all = append(all, Violation{RuleEpochOrder, uid, fmt.Sprintf("%s after %s", describeEntry(entry), describeEntry(last))})
			continue
		}
		last = entry
	}
	return all
}

func describeEntry(e journal.Entry) string {
	return fmt.Sprintf("%s by process %d of epoch %d at %s", e.Action, e.PID, e.Epoch, e.At.UTC().Format(time.StampMilli))
}

// serverHistory is the history of a server, as far as its entries show it.
type serverHistory struct {
	uid types.UID
	// applied are the entries whose change was made.
	applied    []journal.Entry
	unapplied  int // entries whose change did not
	violations []Violation
}

// traceServer follows a server from entry to entry. A change that neither the next entry
// nor the final server shows was never made. That is correct only if its process had
// ended.
func (e Evidence) traceServer(uid types.UID, entries []journal.Entry) serverHistory {
	l := serverHistory{uid: uid}
	var had *journal.Snapshot
	for n, entry := range entries {
		if !isSameSnapshot(entry.Before, had) {
			l.violations = append(l.violations, Violation{RuleNothingLost, uid, fmt.Sprintf("%s found %s, and %s was left", describeEntry(entry), describeSnapshot(entry.Before), describeSnapshot(had))})
		}
		next, at := e.finalServer(uid), time.Time{}
		if n+1 < len(entries) {
			next, at = entries[n+1].Before, entries[n+1].At
		}
		if !isSameSnapshot(entry.After, next) && isSameSnapshot(entry.Before, next) && e.hadExited(entry, at) {
			l.unapplied++
			had = entry.Before
			continue
		}
		l.applied, had = append(l.applied, entry), entry.After
	}
	if found := e.finalServer(uid); !isSameSnapshot(found, had) {
		l.violations = append(l.violations, Violation{RuleNothingLost, uid, fmt.Sprintf("there is %s at the end, and %s was left", describeSnapshot(found), describeSnapshot(had))})
	}
	return l
}

// finalServer is the server that exists at the end.
func (e Evidence) finalServer(uid types.UID) *journal.Snapshot {
	r := e.Servers[uid]
	if r == nil {
		return nil
	}
	return &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State}
}

// exitDetectionDelay is how long it takes to notice a process's end.
const exitDetectionDelay = time.Second

// hadExited reports whether the process that made an entry had ended by some time, or at
// all where that is zero.
func (e Evidence) hadExited(entry journal.Entry, by time.Time) bool {
	p := e.processOf(entry)
	return !p.To.IsZero() && (by.IsZero() || p.To.Before(by.Add(exitDetectionDelay)))
}

// processOf returns the process that made an entry; PIDs are reused.
func (e Evidence) processOf(entry journal.Entry) Process {
	for _, p := range e.Processes {
		if p.PID == entry.PID && !entry.At.Before(p.From) && (p.To.IsZero() || !entry.At.After(p.To)) {
			return p
		}
	}
	return Process{}
}

func isSameSnapshot(a, b *journal.Snapshot) bool { return a == b || a != nil && b != nil && *a == *b }

func describeSnapshot(s *journal.Snapshot) string {
	if s == nil {
		return "no server"
	}
	return fmt.Sprintf("%s, run %q, %s", s.ID, s.Run, s.State)
}

// checkCreation checks that there is one creation, and the same server from then on.
func (e Evidence) checkCreation(l serverHistory) []Violation {
	var all []Violation
	id := ""
	for _, entry := range l.applied {
		switch {
		case entry.Action == journal.ActionCreate && id != "":
			all = append(all, Violation{RuleCreatedOnce, l.uid, fmt.Sprintf("%s, though %s had been created", describeEntry(entry), id)})
		case entry.Action != journal.ActionCreate && (entry.Before == nil || entry.After != nil && entry.After.ID != entry.Before.ID):
			all = append(all, Violation{RuleCreatedOnce, l.uid, fmt.Sprintf("%s made %s of %s", describeEntry(entry), describeSnapshot(entry.After), describeSnapshot(entry.Before))})
		}
		if entry.After != nil {
			id = entry.After.ID
		}
	}
	return all
}

// checkStarts counts runs.
func (e Evidence) checkStarts(l serverHistory) []Violation {
	runs, last := 0, ""
	for _, entry := range l.applied {
		if entry.After != nil && entry.After.Run != last {
			runs++
			last = entry.After.Run
		}
	}
	requested, known := e.Requested[l.uid]
	if !known || runs >= requested.AtLeast && runs <= requested.AtMost {
		return nil
	}
	return []Violation{{RuleStartCount, l.uid, fmt.Sprintf("%s was started %d times: %d to %d times were requested", requested.Name, runs, requested.AtLeast, requested.AtMost)}}
}

// checkRequested checks that a user requested each server, and that it is removed only
// after a user requested that.
func (e Evidence) checkRequested(l serverHistory) []Violation {
	requested, known := e.Requested[l.uid]
	if !known {
		return []Violation{{RuleNothingLost, l.uid, "there is an entry for it, and no user requested it"}}
	}
	for _, entry := range l.applied {
		if entry.After == nil && (requested.DeletedAt.IsZero() || entry.At.Before(requested.DeletedAt)) {
			return []Violation{{RuleNothingLost, l.uid, fmt.Sprintf("%s, and no user had requested that", describeEntry(entry))}}
		}
	}
	return nil
}

// checkFinalizers checks that a VirtualMachine seen without a finalizer had no server
// before.
func (e Evidence) checkFinalizers() []Violation {
	var all []Violation
	for _, observation := range e.Observations {
		created := slices.IndexFunc(e.Journal, func(entry journal.Entry) bool {
			return entry.UID == observation.UID && entry.Action == journal.ActionCreate && entry.At.Before(observation.Since)
		})
		if !observation.Finalizer && created >= 0 {
			all = append(all, Violation{RuleFinalizerFirst, observation.UID, describeEntry(e.Journal[created]) + ", and the finalizer did not exist yet"})
		}
	}
	return all
}

// checkFinalState checks that every VirtualMachine that users left has its server, as
// they left it, and that nothing is left of the others.
func (e Evidence) checkFinalState() []Violation {
	var all []Violation
	broken := func(uid types.UID, format string, args ...any) {
		all = append(all, Violation{RuleFinalState, uid, fmt.Sprintf(format, args...)})
	}
	for uid, requested := range e.Requested {
		vm, server := e.VMs[uid], e.Servers[uid]
		switch {
		case !requested.DeletedAt.IsZero() && vm != nil:
			broken(uid, "%s was deleted and still exists", requested.Name)
		case requested.DeletedAt.IsZero() && vm == nil:
			broken(uid, "%s is gone", requested.Name)
		case vm != nil && server == nil:
			broken(uid, "%s has no server", requested.Name)
		case vm != nil:
			if err := checkSettled(vm, server); err != nil {
				broken(uid, "%s: %v", requested.Name, err)
			}
		}
	}
	for uid, server := range e.Servers {
		if e.VMs[uid] == nil {
			broken(uid, "server %s has no VirtualMachine", server.ID)
		}
	}
	return all
}

// checkSettled returns an error unless VM and server are as the spec says.
func checkSettled(vm *api.VirtualMachine, server *fake.Record) error {
	if err := users.CheckApplied(vm); err != nil {
		return err
	}
	states := map[api.Action]driver.State{
		api.ActionActive: driver.StateRunning, api.ActionStopped: driver.StateStopped, api.ActionPaused: driver.StatePaused,
	}
	state := server.State
	if state == driver.StateStopping && !server.StopsAt.IsZero() {
		state = driver.StateStopped // by the time; the record says so once it is changed
	}
	cpu := vm.Spec.Resource[api.ResourceCPU]
	switch {
	case state != states[vm.Spec.Action]:
		return fmt.Errorf("its server is %s for action %s", state, vm.Spec.Action)
	case server.CPUMilli != cpu.MilliValue():
		return fmt.Errorf("its server has %dm of CPU, want %s", server.CPUMilli, cpu.String())
	case vm.Status.Server == nil || vm.Status.Server.ID != server.ID:
		return fmt.Errorf("its server is %s, and its status has %+v", server.ID, vm.Status.Server)
	}
	return nil
}
