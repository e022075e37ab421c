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
)

// Evidence is the complete input of the oracle.
type Evidence struct {
	// Journal is the fake engine's, in its order.
	Journal []journal.Entry
	// Processes are all processes of replicas that ever ran.
	Processes []Process
	Faults    []Fault
	// Asked is what users requested, for all VirtualMachines that ever existed.
	Asked map[types.UID]Asked
	// Sights are reads of VirtualMachines whose server had been begun.
	Sights []Sight
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

// Asked is what users requested for one VirtualMachine.
type Asked struct {
	Name string
	// DeletedAt is when its deletion was requested, or zero.
	DeletedAt time.Time
	// AtLeast and AtMost are how often its server may have been started. They differ
	// where users did not wait for one request to complete before the next.
	AtLeast, AtMost int
	// Wishes are the requests, for people who look for the cause of a violation.
	Wishes []string
}

// Sight is a VirtualMachine as the API had it at some time after Since.
type Sight struct {
	UID       types.UID
	Since     time.Time
	Finalizer bool
}

// Rule is a condition that must hold.
type Rule string

// The rules.
const (
	// RuleEpochs says that for each server, accepted epochs never decrease.
	RuleEpochs Rule = "epochs never fall"
	// RuleOnce says that for each UID one server is created, once.
	RuleOnce Rule = "one server, made once"
	// RuleKept says that a server stays as the last change left it, and is removed
	// only if a user requested that.
	RuleKept Rule = "nothing is lost"
	// RuleStarts says that a server is started as often as users requested.
	RuleStarts Rule = "started as often as asked"
	// RuleFinalizer says that the finalizer exists before the server.
	RuleFinalizer Rule = "the finalizer comes first"
	// RuleEnd says that the final state is as users left it.
	RuleEnd Rule = "all as asked in the end"
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
		s := e.trace(uid, servers[uid])
		all = slices.Concat(all, fallen(uid, servers[uid]), s.broken, e.once(s), e.starts(s), e.asked(s))
	}
	return slices.Concat(all, e.finalizers(), e.end())
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

// Fallen returns changes of a leader that were accepted after one of a later leader.
func Fallen(entries []journal.Entry) []Violation {
	var all []Violation
	for uid, entries := range byServer(entries) {
		all = append(all, fallen(uid, entries)...)
	}
	return all
}

func fallen(uid types.UID, entries []journal.Entry) []Violation {
	var all []Violation
	var last journal.Entry
	for _, entry := range entries {
		if entry.Epoch < last.Epoch {
			all = append(all, Violation{RuleEpochs, uid, fmt.Sprintf("%s after %s", show(entry), show(last))})
			continue
		}
		last = entry
	}
	return all
}

func show(e journal.Entry) string {
	return fmt.Sprintf("%s by process %d of epoch %d at %s", e.Action, e.PID, e.Epoch, e.At.UTC().Format(time.StampMilli))
}

// life is the history of a server, as far as its entries show it.
type life struct {
	uid types.UID
	// done are the entries whose change was made.
	done   []journal.Entry
	lost   int // entries whose change did not
	broken []Violation
}

// trace follows a server from entry to entry. A change that neither the next entry
// nor the final server shows was never made. That is correct only if its process had
// ended.
func (e Evidence) trace(uid types.UID, entries []journal.Entry) life {
	l := life{uid: uid}
	var had *journal.Snapshot
	for n, entry := range entries {
		if !same(entry.Before, had) {
			l.broken = append(l.broken, Violation{RuleKept, uid, fmt.Sprintf("%s found %s, and %s was left", show(entry), tell(entry.Before), tell(had))})
		}
		next, at := e.found(uid), time.Time{}
		if n+1 < len(entries) {
			next, at = entries[n+1].Before, entries[n+1].At
		}
		if !same(entry.After, next) && same(entry.Before, next) && e.over(entry, at) {
			l.lost++
			had = entry.Before
			continue
		}
		l.done, had = append(l.done, entry), entry.After
	}
	if found := e.found(uid); !same(found, had) {
		l.broken = append(l.broken, Violation{RuleKept, uid, fmt.Sprintf("there is %s in the end, and %s was left", tell(found), tell(had))})
	}
	return l
}

// found is the server that exists at the end.
func (e Evidence) found(uid types.UID) *journal.Snapshot {
	r := e.Servers[uid]
	if r == nil {
		return nil
	}
	return &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State}
}

// noticed is how long it takes to notice a process's end.
const noticed = time.Second

// over reports whether the process that made an entry had ended by some time, or at
// all where that is zero.
func (e Evidence) over(entry journal.Entry, by time.Time) bool {
	p := e.process(entry)
	return !p.To.IsZero() && (by.IsZero() || p.To.Before(by.Add(noticed)))
}

// process returns the process that made an entry; PIDs are reused.
func (e Evidence) process(entry journal.Entry) Process {
	for _, p := range e.Processes {
		if p.PID == entry.PID && !entry.At.Before(p.From) && (p.To.IsZero() || !entry.At.After(p.To)) {
			return p
		}
	}
	return Process{}
}

func same(a, b *journal.Snapshot) bool { return a == b || a != nil && b != nil && *a == *b }

func tell(s *journal.Snapshot) string {
	if s == nil {
		return "no server"
	}
	return fmt.Sprintf("%s, run %q, %s", s.ID, s.Run, s.State)
}

// once checks that there is one creation, and the same server from then on.
func (e Evidence) once(l life) []Violation {
	var all []Violation
	id := ""
	for _, entry := range l.done {
		switch {
		case entry.Action == journal.ActionCreate && id != "":
			all = append(all, Violation{RuleOnce, l.uid, fmt.Sprintf("%s, though %s had been made", show(entry), id)})
		case entry.Action != journal.ActionCreate && (entry.Before == nil || entry.After != nil && entry.After.ID != entry.Before.ID):
			all = append(all, Violation{RuleOnce, l.uid, fmt.Sprintf("%s made %s of %s", show(entry), tell(entry.After), tell(entry.Before))})
		}
		if entry.After != nil {
			id = entry.After.ID
		}
	}
	return all
}

// starts counts runs.
func (e Evidence) starts(l life) []Violation {
	runs, last := 0, ""
	for _, entry := range l.done {
		if entry.After != nil && entry.After.Run != last {
			runs++
			last = entry.After.Run
		}
	}
	asked, known := e.Asked[l.uid]
	if !known || runs >= asked.AtLeast && runs <= asked.AtMost {
		return nil
	}
	return []Violation{{RuleStarts, l.uid, fmt.Sprintf("%s was started %d times: %d to %d times were asked for", asked.Name, runs, asked.AtLeast, asked.AtMost)}}
}

// asked checks that a user requested each server, and that it is removed only after
// a user requested that.
func (e Evidence) asked(l life) []Violation {
	asked, known := e.Asked[l.uid]
	if !known {
		return []Violation{{RuleKept, l.uid, "there is an entry for it, and no user asked for it"}}
	}
	for _, entry := range l.done {
		if entry.After == nil && (asked.DeletedAt.IsZero() || entry.At.Before(asked.DeletedAt)) {
			return []Violation{{RuleKept, l.uid, fmt.Sprintf("%s, and no user had asked for that", show(entry))}}
		}
	}
	return nil
}

// finalizers checks that a VirtualMachine seen without a finalizer had no server
// before.
func (e Evidence) finalizers() []Violation {
	var all []Violation
	for _, sight := range e.Sights {
		begun := slices.IndexFunc(e.Journal, func(entry journal.Entry) bool {
			return entry.UID == sight.UID && entry.Action == journal.ActionCreate && entry.At.Before(sight.Since)
		})
		if !sight.Finalizer && begun >= 0 {
			all = append(all, Violation{RuleFinalizer, sight.UID, show(e.Journal[begun]) + ", and the finalizer was not there yet"})
		}
	}
	return all
}

// end checks that every VirtualMachine that users left has its server, as they left
// it, and that nothing is left of the others.
func (e Evidence) end() []Violation {
	var all []Violation
	broken := func(uid types.UID, format string, args ...any) {
		all = append(all, Violation{RuleEnd, uid, fmt.Sprintf(format, args...)})
	}
	for uid, asked := range e.Asked {
		vm, server := e.VMs[uid], e.Servers[uid]
		switch {
		case !asked.DeletedAt.IsZero() && vm != nil:
			broken(uid, "%s was deleted and is there", asked.Name)
		case asked.DeletedAt.IsZero() && vm == nil:
			broken(uid, "%s is gone", asked.Name)
		case vm != nil && server == nil:
			broken(uid, "%s has no server", asked.Name)
		case vm != nil:
			if err := settled(vm, server); err != nil {
				broken(uid, "%s: %v", asked.Name, err)
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

// settled returns an error unless VM and server are as the spec says.
func settled(vm *api.VirtualMachine, server *fake.Record) error {
	if err := granted(vm); err != nil {
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
		return fmt.Errorf("its server is %s, and its status tells of %+v", server.ID, vm.Status.Server)
	}
	return nil
}
