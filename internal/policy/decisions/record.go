// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decisions records the inputs and results of policy.Decide, so that people can read a
// VirtualMachine's history and derive each decision again.
//
// Start with Record, which has the input and the decision unchanged except for their times, which
// a record has by the host's clock. sentences.go describes it for people. The controller's package
// recorder collects records, and test/framework/rules derives decisions from them again.
package decisions

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/policy"
)

// Record is a decision with its input and its outcome.
type Record struct {
	// Replica made the decision, and Sequence numbers all decisions of it.
	Replica  string `json:"replica"`
	Sequence uint64 `json:"sequence"`
	// Version is the version of Drover.
	Version  string          `json:"version"`
	Input    policy.Input    `json:"input"`
	Decision policy.Decision `json:"decision"`
	Later
}

// Later has the facts about a decision that become known after it was made.
type Later struct {
	// Repeats is how often the same decision was made again in a row, and Until the last time.
	Repeats int       `json:"repeats,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	Outcome Outcome   `json:"outcome,omitzero"`
}

// Update is the outcome of an earlier decision, in a file of test/faults.
type Update struct {
	Replica  string `json:"replica"`
	Sequence uint64 `json:"sequence"`
	Later    Later  `json:"later"`
}

// Outcome is the outcome of a step.
type Outcome struct {
	At     time.Time `json:"at"`
	Result Result    `json:"result"`
	// Error is the text of a driver's error. API has the kind of an API server's error instead.
	Error string `json:"error,omitzero"`
	// API is the kind of an error of the API server, such as Conflict.
	API string `json:"api,omitzero"`
}

// Result is the outcome of a step in one word.
type Result string

// Values of Result.
const (
	// Succeeded means that the step was taken.
	Succeeded Result = "Succeeded"
	// Failed means that the step was tried and failed. It is tried again later.
	Failed Result = "Failed"
	// Outdated means that the step was not taken, since the input of the decision has changed.
	Outdated Result = "Outdated"
	// Ended means that the pass ended without a report, because the API server failed or this
	// process may not act.
	Ended Result = "Ended"
)

// New returns the record of a decision.
func New(in policy.Input, d policy.Decision) Record {
	now, status, observed, since := in.Now, &in.VM.Status, &in.Observed, &in.Since
	for _, t := range [...]*time.Time{
		&in.Now, &in.VM.Spec.RestartedAt, &status.RestartedAt, &status.StartTime, &status.Operation.NextRetryTime, &status.Operation.RestartedAt,
		&observed.DownSince, &observed.BackSince, &observed.SettlesAt, &observed.Server.StartedAt, &observed.Server.Exit.At,
		&since.Deletion, &since.Operation, &since.Failure, &since.Cleanup, &since.Run, &since.Exit,
		&d.Action.StopBy, &d.WakeAt, &d.NextTry,
	} {
		*t = wallTime(*t, now)
	}
	return Record{Input: in, Decision: d}
}

// wallTime turns a time into one of the host's clock, in UTC. A wait counts by the monotonic
// clock, which goes on evenly when someone sets the host's. So the time is recorded by its
// distance from now, and a replay finds the same order. The zero time stays zero.
func wallTime(t, now time.Time) time.Time {
	wall := t.Round(0)
	if wall == t { //nolint:staticcheck // Equal would not tell that there is no monotonic reading.
		return wall.UTC()
	}
	return now.Round(0).UTC().Add(t.Sub(now))
}

// Key returns the name of the VirtualMachine.
func (r *Record) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Input.VM.Namespace, Name: r.Input.VM.Name}
}

// At returns when the decision was made.
func (r *Record) At() time.Time { return r.Input.Now }

// IsRepeated reports whether another record is the same decision to wait, from the same facts
// at another time. A difference only in an engine's progress does not count.
func (r *Record) IsRepeated(other *Record) bool {
	if r.Decision.Action.Step != policy.StepNone || other.Decision.Action.Step != policy.StepNone {
		return false
	}
	a, b := r.Input, other.Input
	for _, in := range []*policy.Input{&a, &b} {
		in.Now, in.Since, in.Observed.Server.Progress = time.Time{}, policy.Instants{}, ""
	}
	c, d := r.Decision, other.Decision
	for _, of := range []*policy.Decision{&c, &d} {
		of.WakeAt, of.NextTry, of.Action.StopBy = time.Time{}, time.Time{}, time.Time{}
	}
	if r.Input.Observed.Server.Progress != "" && other.Input.Observed.Server.Progress != "" {
		c.Status.Message, d.Status.Message = "", ""
	}
	return a == b && c == d
}

// History has a VirtualMachine's decisions as far as one replica recorded them, the newest last.
type History struct {
	Replica string `json:"replica"`
	Version string `json:"version"`
	// Leads is set if the replica led when it answered, and Epoch is then its number. Only a
	// leader decides: the decisions of another replica are from its former leadership.
	Leads bool   `json:"leads"`
	Epoch uint64 `json:"epoch,omitzero"`
	// Since is when the replica began to record. It does not know earlier decisions.
	Since time.Time `json:"since"`
	// Dropped is how many decisions, of any VirtualMachine, made room for newer ones.
	Dropped   uint64   `json:"dropped,omitzero"`
	Decisions []Record `json:"decisions"`
}

// Histories are the answers of several replicas, as kubectl vm explain --history -o json prints
// them.
type Histories struct {
	Replicas []History `json:"replicas"`
}

// recordBytes is about how much memory a record takes in addition to its texts.
const recordBytes = 2048

// Bytes returns about how much memory the record takes.
func (r *Record) Bytes() int {
	return recordBytes + textBytes(reflect.ValueOf(&r.Input).Elem()) + textBytes(reflect.ValueOf(&r.Decision).Elem())
}

// textBytes returns the length of all texts in a value.
func textBytes(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		n = v.Len()
	case reflect.Struct:
		for _, field := range v.Fields() {
			n += textBytes(field)
		}
	default:
	}
	return n
}
