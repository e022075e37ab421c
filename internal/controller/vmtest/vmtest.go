// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vmtest has VirtualMachines and observations of their servers for
// tests. All times in them are relative to T0.
package vmtest

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/framework"
)

// T0 is the present.
var T0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// EngineID is the id of the engine that all observations are of.
const EngineID = "engine-1"

// ReportedVM is a VM that was reported once and whose spec is unchanged since.
func ReportedVM() *framework.VMBuilder {
	return framework.NewVM("vm").UID("uid-1").Generation(2).Bound("fake/" + EngineID + "/uid-1").
		Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 2 })
}

// Present observes a server in a state.
func Present(state driver.State) inventory.Observation {
	s := driver.Server{UID: "uid-1", ID: "id-1", Namespace: "default", Name: "vm", State: state, Run: "run-1"}
	s.Applied = driver.Resources{CPUMilli: 2000, MemoryBytes: 4e9}
	if state != driver.StatePending {
		s.StartedAt = T0.Add(-time.Hour)
	}
	return inventory.Observation{Answer: inventory.Present, Server: s, EngineID: EngineID}
}

// Ended observes a server that has ended by itself.
func Ended(code int) inventory.Observation {
	o := Present(driver.StateStopped)
	o.Server.Exit = &driver.Exit{Code: code, At: T0.Add(-time.Second)}
	return o
}

// Lost observes a server that may run or not.
func Lost() inventory.Observation {
	o := Present(driver.StateUnknown)
	o.Server.Err = errors.New("the node is gone")
	return o
}

// Gone observes that there is no server.
func Gone() inventory.Observation {
	return inventory.Observation{Answer: inventory.Gone, EngineID: EngineID}
}

// Unknown observes an outage that began some time ago.
func Unknown(since time.Duration) inventory.Observation {
	return inventory.Observation{EngineID: EngineID, DownSince: T0.Add(-since), Cause: errors.New("connection refused")}
}

// Failing puts a failed operation into the status. Its next try is due after wait.
func Failing(kind api.OperationType, attempts int32, wait time.Duration) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		next := metav1.NewMicroTime(T0.Add(wait))
		s.Phase, s.Reason, s.Message = api.PhaseFailed, api.ReasonOperationFailed, "boom"
		s.Operation = &api.Operation{Type: kind, Generation: 2, Attempts: attempts, StartedAt: metav1.NewMicroTime(T0.Add(-time.Minute)), NextRetryTime: &next, Failure: api.FailureFailed, Reason: api.ReasonOperationFailed, LastError: "boom"}
	}
}

// Refused puts a creation into the status that the driver refused.
func Refused(s *api.VirtualMachineStatus) {
	s.Reason, s.Message = api.ReasonInvalid, "no"
	s.Operation = &api.Operation{Type: api.OperationCreate, Generation: 2, Attempts: 1, Failure: api.FailureRefused, Reason: api.ReasonInvalid, LastError: "spec.cpu: no"}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: api.ConditionStalled, Status: metav1.ConditionTrue, Reason: "Invalid"})
}

// WithServer puts a server into the status.
func WithServer(id string, state driver.State) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{ID: id, State: string(state)} }
}

// WithOperation puts an operation into the status that is under way.
func WithOperation(kind api.OperationType, ago time.Duration, run string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: kind, StartedAt: metav1.NewMicroTime(T0.Add(-ago)), Run: run}
		if kind == api.OperationRestart {
			s.Operation.RestartedAt = &metav1.Time{Time: T0}
		}
	}
}

// ShortRun observes a run that ended after a second, and returns the status that
// counts such runs.
func ShortRun(code int, attempts int32, endedAgo time.Duration) (inventory.Observation, func(*api.VirtualMachineStatus)) {
	o := Ended(code)
	o.Server.Exit.At = T0.Add(-endedAgo)
	o.Server.StartedAt = o.Server.Exit.At.Add(-time.Second)
	return o, func(s *api.VirtualMachineStatus) {
		s.Phase, s.Reason = api.PhaseActive, api.ReasonRunning
		s.Operation = &api.Operation{Type: api.OperationStart, Attempts: attempts, Failure: api.FailureExited}
	}
}

// PendingRestart puts a field into the status that waits for a restart.
func PendingRestart(s *api.VirtualMachineStatus) {
	started := metav1.NewMicroTime(T0.Add(-time.Hour))
	s.StartTime = &started
	s.PendingFields = []string{"image"}
}

// ChangeServer returns an observation with a changed server.
func ChangeServer(o inventory.Observation, fn func(*driver.Server)) inventory.Observation {
	fn(&o.Server)
	return o
}

// RefusedImage puts an image into the status that the server cannot have.
func RefusedImage(s *api.VirtualMachineStatus) {
	s.RefusedField = &api.RefusedField{Field: "image", Reason: api.ReasonImageImmutable, Message: "image is b: the disk stands on a"}
}
