// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policytest has inputs of decisions for tests. All times in them are relative to T0.
package policytest

import (
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// T0 is the present.
var T0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// EngineID is the id of the engine that all observations are of.
const EngineID = "engine-1"

// Builder makes inputs.
type Builder struct{ in policy.Input }

// NewVM begins with a VM that was never reported: two CPUs, 4 GB, on.
func NewVM() *Builder {
	return &Builder{policy.Input{
		Now: T0, Driver: "fake", Drivers: policy.ListOf("fake", "docker"),
		VM: policy.VM{
			Namespace: "default", Name: "vm", UID: "uid-1",
			Spec: policy.Spec{GracePeriodSeconds: 30, Size: policy.Size{CPUMilli: 2000, MemoryBytes: 4e9}},
		},
	}}
}

// ReportedVM begins with a bound VM that was reported once and whose spec is unchanged since.
func ReportedVM() *Builder {
	b := NewVM().Generation(2)
	b.in.VM.Binding, b.in.VM.IsBound = api.Binding{Driver: "fake", EngineID: EngineID, UID: "uid-1"}, true
	b.in.VM.Status.ObservedGeneration = 2
	return b
}

// Observing returns the input with an observation, whose times are the instants at which it was
// made.
func (b *Builder) Observing(o policy.Observed) policy.Input {
	in := b.in
	in.Observed, in.Since.Run, in.Since.Exit = o, o.Server.StartedAt, o.Server.Exit.At
	in.PassedGeneration = in.VM.Status.ObservedGeneration
	return in
}

// Generation sets the generation of the spec.
func (b *Builder) Generation(n int64) *Builder { b.in.VM.Generation = n; return b }

// DeletedAt has the deletion requested and observed.
func (b *Builder) DeletedAt(at time.Time) *Builder {
	b.in.VM.IsDeleted, b.in.Since.Deletion = true, at
	return b
}

// Action sets spec.action.
func (b *Builder) Action(a api.Action) *Builder { b.in.VM.Spec.Action = a; return b }

// Driver sets spec.driver.
func (b *Builder) Driver(name string) *Builder { b.in.VM.Spec.Driver = name; return b }

// RestartPolicy sets spec.restartPolicy.
func (b *Builder) RestartPolicy(p api.RestartPolicy) *Builder {
	b.in.VM.Spec.RestartPolicy = p
	return b
}

// DeletionPolicy sets spec.deletionPolicy.
func (b *Builder) DeletionPolicy(p api.DeletionPolicy) *Builder {
	b.in.VM.Spec.DeletionPolicy = p
	return b
}

// RestartedAt sets spec.restartedAt.
func (b *Builder) RestartedAt(at time.Time) *Builder { b.in.VM.Spec.RestartedAt = at; return b }

// GracePeriod sets spec.shutdownGracePeriodSeconds.
func (b *Builder) GracePeriod(seconds int64) *Builder {
	b.in.VM.Spec.GracePeriodSeconds = seconds
	return b
}

// With changes the input by a function.
func (b *Builder) With(change func(*policy.Input)) *Builder {
	change(&b.in)
	return b
}

// Present observes a server in a state.
func Present(state policy.State) policy.Observed {
	s := policy.Server{ID: "id-1", State: state, Run: "run-1", Applied: policy.Size{CPUMilli: 2000, MemoryBytes: 4e9}}
	if state != policy.StatePending {
		s.StartedAt = T0.Add(-time.Hour)
	}
	return policy.Observed{Answer: policy.Present, Server: s, EngineID: EngineID}
}

// Ended observes a server that has ended by itself.
func Ended(code int) policy.Observed {
	o := Present(policy.StateStopped)
	o.Server.Exit = policy.Exit{HasEnded: true, Code: code, At: T0.Add(-time.Second)}
	return o
}

// Lost observes a server that may run or not.
func Lost() policy.Observed {
	o := Present(policy.StateUnknown)
	o.Server.Error = "the node is gone"
	return o
}

// Gone observes that there is no server.
func Gone() policy.Observed { return policy.Observed{Answer: policy.Gone, EngineID: EngineID} }

// Unknown observes an outage that began some time ago.
func Unknown(since time.Duration) policy.Observed {
	return policy.Observed{EngineID: EngineID, DownSince: T0.Add(-since), Cause: "connection refused"}
}

// ChangeServer returns an observation with a changed server.
func ChangeServer(o policy.Observed, change func(*policy.Server)) policy.Observed {
	change(&o.Server)
	return o
}

// Failing puts a failed operation into the status. Its next try is due after wait.
func Failing(kind api.OperationType, attempts int32, wait time.Duration) func(*policy.Input) {
	return func(in *policy.Input) {
		next := T0.Add(wait)
		in.VM.Status.Operation = policy.Operation{Type: kind, Generation: 2, Attempts: attempts, NextRetryTime: next, Failure: api.FailureFailed, Reason: api.ReasonOperationFailed, LastError: "boom"}
		in.Since.Operation, in.Since.Failure = T0.Add(-time.Minute), next.Add(-policy.Backoff(attempts, false))
	}
}

// Refused puts a creation into the status that the driver refused.
func Refused(in *policy.Input) {
	in.VM.Status.Operation = policy.Operation{Type: api.OperationCreate, Generation: 2, Attempts: 1, Failure: api.FailureRefused, Reason: api.ReasonInvalid, LastError: "spec.cpu: no"}
}

// WithServer puts a server into the status.
func WithServer(id string, state policy.State) func(*policy.Input) {
	return func(in *policy.Input) { in.VM.Status.Server = policy.ServerStatus{ID: id, State: state} }
}

// WithOperation puts an operation into the status that is under way.
func WithOperation(kind api.OperationType, ago time.Duration, run string) func(*policy.Input) {
	return func(in *policy.Input) {
		in.VM.Status.Operation, in.Since.Operation = policy.Operation{Type: kind, Run: run}, T0.Add(-ago)
		if kind == api.OperationRestart {
			in.VM.Status.Operation.RestartedAt = T0
		}
	}
}

// ShortRun observes a run that ended after a second, and returns the status that
// counts such runs.
func ShortRun(code int, attempts int32, endedAgo time.Duration) (policy.Observed, func(*policy.Input)) {
	o := Ended(code)
	o.Server.Exit.At = T0.Add(-endedAgo)
	o.Server.StartedAt = o.Server.Exit.At.Add(-time.Second)
	return o, func(in *policy.Input) {
		in.VM.Status.Operation = policy.Operation{Type: api.OperationStart, Attempts: attempts, Failure: api.FailureExited}
	}
}

// PendingRestart puts a field into the status that waits for a restart.
func PendingRestart(in *policy.Input) {
	in.VM.Status.StartTime, in.VM.Status.PendingFields = T0.Add(-time.Hour), policy.ListOf("image")
}

// RefusedImage puts an image into the status that the server cannot have.
func RefusedImage(in *policy.Input) {
	in.VM.Status.RefusedField = api.RefusedField{Field: "image", Reason: api.ReasonImageImmutable, Message: "image is b: the disk stands on a"}
}
