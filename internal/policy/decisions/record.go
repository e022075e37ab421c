// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// Record is a decision, with what it was made from and what came of it.
type Record struct {
	// Replica made the decision, and Sequence numbers all decisions of it.
	Replica  string `json:"replica"`
	Sequence uint64 `json:"sequence"`
	// Version is that of Drover.
	Version  string   `json:"version"`
	Input    Input    `json:"input"`
	Decision Decision `json:"decision"`
	Later
}

// Later is what becomes known of a decision after it was made.
type Later struct {
	// Repeats is how often the same was decided again in a row, and Until when it last was.
	Repeats int               `json:"repeats,omitzero"`
	Until   time.Time         `json:"until,omitzero"`
	Outcome Optional[Outcome] `json:"outcome,omitzero"`
}

// Outcome is what came of a step.
type Outcome struct {
	At     time.Time `json:"at"`
	Result Result    `json:"result"`
	// Error is that of a driver. Of an error of the API server only the kind is recorded.
	Error Optional[Error] `json:"error,omitzero"`
	// API is the kind of an error of the API server, such as Conflict.
	API string `json:"api,omitzero"`
}

// Result is what came of a step, in one word.
type Result string

// The results.
const (
	// Succeeded means that the step was taken.
	Succeeded Result = "Succeeded"
	// Failed means that the step was tried and failed. It is tried again later.
	Failed Result = "Failed"
	// Outdated means that the step was not taken, since what it was decided from has changed.
	Outdated Result = "Outdated"
	// Ended means that the pass ended without a report, because the API server failed or this
	// process may not act.
	Ended Result = "Ended"
)

// NewOutcome returns an outcome. The error may be nil.
func NewOutcome(at time.Time, result Result, err error) Outcome {
	return Outcome{At: at.Round(0).UTC(), Result: result, Error: errorOf(err)}
}

// Input is a policy.Input.
type Input struct {
	Now              time.Time         `json:"now"`
	VM               VM                `json:"vm"`
	Observed         Observed          `json:"observed"`
	Driver           string            `json:"driver,omitzero"`
	Drivers          List              `json:"drivers,omitzero"`
	Epoch            int64             `json:"epoch,omitzero"`
	Done             api.OperationType `json:"done,omitzero"`
	PassedGeneration int64             `json:"passedGeneration,omitzero"`
	Probe            Probe             `json:"probe,omitzero"`
	Since            Instants          `json:"since,omitzero"`
	DeletionBlocker  string            `json:"deletionBlocker,omitzero"`
}

// Probe is a policy.ProbeResult.
type Probe struct {
	Wanted    bool   `json:"wanted,omitzero"`
	Completed bool   `json:"completed,omitzero"`
	OK        bool   `json:"ok,omitzero"`
	Message   string `json:"message,omitzero"`
}

// Instants is a policy.Instants.
type Instants struct {
	Deletion  time.Time `json:"deletion,omitzero"`
	Operation time.Time `json:"operation,omitzero"`
	Failure   time.Time `json:"failure,omitzero"`
	Run       time.Time `json:"run,omitzero"`
	Exit      time.Time `json:"exit,omitzero"`
}

// New returns the record of a decision. It keeps nothing of the input alive but texts.
func New(in *policy.Input, d *policy.Decision) Record {
	b := newClockBase(in.Now)
	probe, since := Probe(in.Probe), Instants(in.Since)
	probe.Message = cutInput(probe.Message)
	for _, t := range []*time.Time{&since.Deletion, &since.Operation, &since.Failure, &since.Run, &since.Exit} {
		*t = b.at(*t)
	}
	return Record{
		Input: Input{
			Now: b.wall, VM: b.vm(in.VM), Observed: b.observed(&in.Observed), Driver: in.Driver, Drivers: listOf(in.Drivers), Epoch: in.Epoch,
			Done: in.Done, PassedGeneration: in.PassedGeneration, Probe: probe, Since: since, DeletionBlocker: cutInput(in.DeletionBlocker),
		},
		Decision: b.decision(d),
	}
}

// policy returns the input that was recorded.
func (in *Input) policy() policy.Input {
	return policy.Input{
		VM: in.VM.object(), Observed: in.Observed.observation(), Now: in.Now, Driver: in.Driver, Drivers: in.Drivers.Names(), Epoch: in.Epoch,
		Done: in.Done, PassedGeneration: in.PassedGeneration, Probe: policy.ProbeResult(in.Probe), Since: policy.Instants(in.Since),
		DeletionBlocker: in.DeletionBlocker,
	}
}

// Key returns the name of the VirtualMachine.
func (r *Record) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Input.VM.Namespace, Name: r.Input.VM.Name}
}

// At returns when the decision was made.
func (r *Record) At() time.Time { return r.Input.Now }

// IsRepeated reports whether another record is the same decision to wait, from the same facts
// at another time. What an engine reports of its progress does not count.
func (r *Record) IsRepeated(other *Record) bool {
	if r.Decision.Action.Step != stepWait || other.Decision.Action.Step != stepWait {
		return false
	}
	a, b := r.Input, other.Input
	for _, in := range []*Input{&a, &b} {
		in.Now, in.Since, in.Observed.Server.Progress = time.Time{}, Instants{}, ""
	}
	c, d := r.Decision, other.Decision
	for _, of := range []*Decision{&c, &d} {
		of.WakeAt, of.NextTry, of.Action.StopBy = time.Time{}, time.Time{}, time.Time{}
	}
	if r.Input.Observed.Server.Progress != "" && other.Input.Observed.Server.Progress != "" {
		c.Status.Message, d.Status.Message = "", ""
	}
	return a == b && c == d
}

// History is what one replica has of a VirtualMachine's decisions, the newest last.
type History struct {
	Replica string `json:"replica"`
	Version string `json:"version"`
	// Leads is set if the replica led when it answered, and Epoch is then its number. Only a
	// leader decides: what another one has is of its former leadership.
	Leads bool   `json:"leads"`
	Epoch uint64 `json:"epoch,omitzero"`
	// Since is when the replica began to record. What was decided before is not known to it.
	Since time.Time `json:"since"`
	// Dropped is how many decisions, of any VirtualMachine, made room for newer ones.
	Dropped   uint64   `json:"dropped,omitzero"`
	Decisions []Record `json:"decisions"`
}

// recordBytes is about how much a record takes in memory besides the texts that Bytes counts.
const recordBytes = 2400

// Bytes returns about how much memory the record takes. It counts every text that an engine or a
// user chose, except for names that the API server bounds.
func (r *Record) Bytes() int {
	in := &r.Input
	n := recordBytes + len(in.VM.Bound) + len(in.DeletionBlocker) + len(in.Probe.Message)
	n += in.VM.Status.bytes() + in.Observed.bytes()
	return n + len(r.Decision.Action.EndRun) + len(r.Decision.Action.CrashedRun) + len(r.Decision.Status.Message) + len(r.Decision.Status.Refused.Value.Message) + len(r.Decision.Status.Pending.joined)
}

func (s *Status) bytes() int {
	server, op := &s.Server.Value, &s.Operation.Value
	n := len(server.ID) + len(server.StoppedRun) + len(server.Run) + len(op.LastError) + len(op.Reason) + len(op.Run)
	return n + len(s.RefusedField.Value.Message) + len(s.PendingFields.joined)
}

func (o *Observed) bytes() int {
	n := len(o.EngineID) + len(o.Duplicates.joined) + len(o.Cause.Value.Text) + len(o.Cause.Value.Reason)
	s := &o.Server
	n += len(s.ID) + len(s.Run) + len(s.State) + len(s.Progress) + len(s.Note)
	return n + len(s.Err.Value.Text) + len(s.Err.Value.Reason) + len(s.Exit.Value.Reason)
}
