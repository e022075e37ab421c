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
	"cloudnative.tw/drover/test/framework/history"
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

// Observation is a VirtualMachine as the API had it at some time after Since.
type Observation struct {
	UID       types.UID
	Since     time.Time
	Finalizer bool
}

// What the journal shows is judged by package history.
type (
	// Process is a process of a replica.
	Process = history.Process
	// Rule is a condition that must hold.
	Rule = history.Rule
	// Violation is a breach of a rule.
	Violation = history.Violation
)

// The rules, besides those that the journal alone shows.
const (
	// RuleStartCount says that a server is started as often as users requested.
	RuleStartCount Rule = "started as often as requested"
	// RuleFinalizerFirst says that the finalizer exists before the server.
	RuleFinalizerFirst Rule = "the finalizer comes first"
	// RuleFinalState says that the final state is as users left it.
	RuleFinalState Rule = "all as requested at the end"
)

func newViolation(rule Rule, uid types.UID, text string) Violation {
	return Violation{Rule: rule, UID: uid, Text: text}
}

// Judge returns the rules that were broken.
func Judge(e Evidence) []Violation {
	var all []Violation
	servers := history.ByServer(e.Journal)
	for _, uid := range slices.Sorted(maps.Keys(servers)) {
		s := e.traceServer(uid, servers[uid])
		all = slices.Concat(all, history.EpochDecreases(servers[uid]), s.Violations, s.CheckCreation(), e.checkStarts(s), e.checkRequested(s))
	}
	return slices.Concat(all, e.checkFinalizers(), e.checkFinalState())
}

// traceServer follows a server from entry to entry.
func (e Evidence) traceServer(uid types.UID, entries []journal.Entry) history.Server {
	return history.TraceServer(uid, entries, e.finalServer(uid), e.Processes)
}

// finalServer is the server that exists at the end.
func (e Evidence) finalServer(uid types.UID) *journal.Snapshot {
	r := e.Servers[uid]
	if r == nil {
		return nil
	}
	return &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State}
}

// checkStarts counts runs.
func (e Evidence) checkStarts(l history.Server) []Violation {
	runs := l.CountRuns()
	requested, known := e.Requested[l.UID]
	if !known || runs >= requested.AtLeast && runs <= requested.AtMost {
		return nil
	}
	return []Violation{newViolation(RuleStartCount, l.UID, fmt.Sprintf("%s was started %d times: %d to %d times were requested", requested.Name, runs, requested.AtLeast, requested.AtMost))}
}

// checkRequested checks that a user requested each server, and that it is removed only
// after a user requested that.
func (e Evidence) checkRequested(l history.Server) []Violation {
	requested, known := e.Requested[l.UID]
	if !known {
		return []Violation{newViolation(history.RuleNothingLost, l.UID, "there is an entry for it, and no user requested it")}
	}
	for _, entry := range l.Applied {
		if entry.After == nil && (requested.DeletedAt.IsZero() || entry.At.Before(requested.DeletedAt)) {
			return []Violation{newViolation(history.RuleNothingLost, l.UID, fmt.Sprintf("%s, and no user had requested that", history.DescribeEntry(entry)))}
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
			all = append(all, newViolation(RuleFinalizerFirst, observation.UID, history.DescribeEntry(e.Journal[created])+", and the finalizer did not exist yet"))
		}
	}
	return all
}

// checkFinalState checks that every VirtualMachine that users left has its server, as
// they left it, and that nothing is left of the others.
func (e Evidence) checkFinalState() []Violation {
	var all []Violation
	broken := func(uid types.UID, format string, args ...any) {
		all = append(all, newViolation(RuleFinalState, uid, fmt.Sprintf(format, args...)))
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
