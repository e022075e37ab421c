// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
)

// Server is a server as its engine describes it, for all drivers.
type Server struct {
	UID      types.UID
	ID, Name string
	// State is empty if it is unknown.
	State driver.State
	// CPUMilli is UnknownCPU if it is unknown.
	CPUMilli int64
	Released bool
	// Snapshot is the server in the form of the driver's journal, or nil for drivers without one.
	Snapshot *journal.Snapshot
	// Config is the part of the configuration that can be compared between runs.
	Config string
}

// UnknownCPU is the CPUMilli of a server whose engine was not asked for it.
const UnknownCPU = -1

// ServerOf returns the server of a record of the fake engine at a time.
func ServerOf(r *fake.Record, when time.Time) Server {
	return Server{
		UID: r.UID, ID: r.ID, Name: r.Name, State: StateAt(r, when), CPUMilli: r.CPUMilli, Released: r.Retained,
		Snapshot: &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State},
	}
}

// StateAt returns the state of a record of the fake engine at a time. Its field State is updated only with the
// next change of the record.
func StateAt(r *fake.Record, when time.Time) driver.State {
	switch {
	case r.State == driver.StateRunning && when.Before(r.UpAt):
		return driver.StateStarting
	case r.State == driver.StateStopping && !r.StopsAt.IsZero() && !when.Before(r.StopsAt):
		return driver.StateStopped
	}
	return r.State
}

// phases has the phase that each action leads to, and states the server's state in each phase.
var (
	phases = map[api.Action]api.Phase{
		api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped, api.ActionPaused: api.PhasePaused,
	}
	states = map[api.Phase]driver.State{
		api.PhaseActive: driver.StateRunning, api.PhaseStopped: driver.StateStopped, api.PhasePaused: driver.StatePaused,
	}
)

// WantedState returns the state that a server has once an action is applied.
func WantedState(action api.Action) driver.State { return states[phases[action]] }

// IsReady reports whether a VirtualMachine is Ready for its latest spec.
func IsReady(vm *api.VirtualMachine) bool {
	ready := meta.FindStatusCondition(vm.Status.Conditions, api.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == vm.Generation
}

// CheckStatus returns an error unless the status says that the spec is applied.
func CheckStatus(vm *api.VirtualMachine) error {
	var wrong string
	switch {
	case !IsReady(vm):
		wrong = "it is not Ready"
	case vm.Status.Phase != phases[vm.Spec.Action] || vm.Status.ObservedGeneration != vm.Generation:
		wrong = fmt.Sprintf("its action is %s", vm.Spec.Action)
	case vm.Spec.RestartedAt != nil && !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt):
		wrong = fmt.Sprintf("a restart of %s was requested", vm.Spec.RestartedAt)
	default:
		return nil
	}
	status, err := json.Marshal(vm.Status)
	if err != nil {
		return err
	}
	return fmt.Errorf("generation %d: %s; its status is %s", vm.Generation, wrong, status)
}

// CheckApplied returns an error unless a VirtualMachine's spec is applied to its status and its server, which may be nil.
func CheckApplied(vm *api.VirtualMachine, s *Server) error {
	if err := CheckStatus(vm); err != nil {
		return err
	}
	cpu := vm.Spec.Resource[api.ResourceCPU]
	switch {
	case s == nil:
		return errors.New("it lacks a server")
	case s.State != WantedState(vm.Spec.Action):
		return fmt.Errorf("its server is %s for action %s", s.State, vm.Spec.Action)
	case s.CPUMilli != UnknownCPU && s.CPUMilli != cpu.MilliValue():
		return fmt.Errorf("its server has %dm of CPU, want %s", s.CPUMilli, cpu.String())
	case vm.Status.Server == nil || vm.Status.Server.ID != s.ID:
		return fmt.Errorf("its server is %s, and its status has %+v", s.ID, vm.Status.Server)
	}
	return nil
}

// CheckServers checks that each VirtualMachine has one server, which its status describes, and each server one
// VirtualMachine. It is correct only while nothing changes.
func CheckServers(vms []*api.VirtualMachine, servers []Server) (broken []Violation) {
	byUID := ByUID(servers)
	for _, vm := range vms {
		broken = append(broken, checkServersOf(vm, byUID[vm.UID])...)
		delete(byUID, vm.UID)
	}
	for uid, left := range byUID {
		broken = append(broken, Violation{Rule: NoOrphans, UID: uid, Text: fmt.Sprintf("server %s of %s lacks a VirtualMachine", left[0].ID, left[0].Name)})
	}
	return broken
}

// ByUID returns the servers of each UID that were not released.
func ByUID(servers []Server) map[types.UID][]Server {
	byUID := map[types.UID][]Server{}
	for _, s := range servers {
		if !s.Released {
			byUID[s.UID] = append(byUID[s.UID], s)
		}
	}
	return byUID
}

func checkServersOf(vm *api.VirtualMachine, servers []Server) []Violation {
	hasID := vm.Status.Server != nil && vm.Status.Server.ID != ""
	switch {
	case len(servers) > 1:
		return []Violation{Broken(OneServer, "%s has %d servers", vm.Name, len(servers))}
	case len(servers) == 1:
		return checkServer(vm, servers[0])
	case hasID:
		return []Violation{Broken(StatusTrue, "the status of %s has the server %s, which does not exist", vm.Name, vm.Status.Server.ID)}
	case vm.Status.Phase == api.PhaseActive:
		return []Violation{Broken(ServerPresent, "%s lacks a server", vm.Name)}
	}
	return nil
}

// checkServer compares a status with its server.
func checkServer(vm *api.VirtualMachine, s Server) (broken []Violation) {
	if vm.Status.Server == nil || vm.Status.Server.ID != s.ID {
		broken = append(broken, Broken(StatusTrue, "%s has the server %s, and its status says %+v", vm.Name, s.ID, vm.Status.Server))
	}
	if want, ok := states[vm.Status.Phase]; ok && s.State != "" && s.State != want {
		broken = append(broken, Broken(StatusTrue, "%s is %s, and its server %s", vm.Name, vm.Status.Phase, s.State))
	}
	return broken
}

// CheckClaims checks that no version of a VirtualMachine was Ready before the first server of its UID was created. It
// allows a second, as conditions have times in whole seconds.
func CheckClaims(versions []*api.VirtualMachine, created map[types.UID]time.Time) []Violation {
	for _, vm := range versions {
		ready := meta.FindStatusCondition(vm.Status.Conditions, api.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionTrue {
			continue
		}
		first, ok := created[vm.UID]
		if !ok || ready.LastTransitionTime.Add(time.Second).Before(first) {
			return []Violation{Broken(StatusTrue, "%s, UID %s, was Ready at %s, and its first server was created at %s",
				vm.Name, vm.UID, ready.LastTransitionTime.UTC().Format(time.StampMilli), first.UTC().Format(time.StampMilli))}
		}
	}
	return nil
}
