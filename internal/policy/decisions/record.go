// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decisions records the inputs and results of policy.Decide, so that people can read a
// VirtualMachine's history and replay each decision.
//
// Start with Record, which contains an input and its decision. They are stored unchanged, except
// that times are converted to the host's clock. sentences.go formats records for people. The
// controller's package recorder collects records, and test/framework/rules replays them.
package decisions

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/policy"
)

// Record is a decision with its input and its outcome.
type Record struct {
	// Replica made the decision. Sequence is the number of the decision among all decisions of this replica.
	Replica  string `json:"replica"`
	Sequence uint64 `json:"sequence"`
	// Version is the replica's version of Drover.
	Version  string          `json:"version"`
	Input    policy.Input    `json:"input"`
	Decision policy.Decision `json:"decision"`
	LaterFacts
}

// LaterFacts holds the facts about a decision that become known after it was made.
type LaterFacts struct {
	// Repeats is how many times in a row the same decision was repeated, and Until is when it was
	// last made.
	Repeats int       `json:"repeats,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	Outcome Outcome   `json:"outcome,omitzero"`
}

// Update is a line in a file of test/faults that adds later facts to a decision recorded earlier.
type Update struct {
	Replica  string     `json:"replica"`
	Sequence uint64     `json:"sequence"`
	Later    LaterFacts `json:"later"`
}

// Outcome tells when and how a step ended.
type Outcome struct {
	At     time.Time `json:"at"`
	Result Result    `json:"result"`
	// Error is the text of an error of the driver.
	Error string `json:"error,omitzero"`
	// API is the reason of an error of the API server, such as Conflict. The text is left out.
	API string `json:"api,omitzero"`
}

// Result is the outcome of a step in one word.
type Result string

// Values of Result.
const (
	// Succeeded means that the step was taken.
	Succeeded Result = "Succeeded"
	// Failed means that the step was tried and failed. Drover tries the step again later.
	Failed Result = "Failed"
	// Outdated means that the step was not taken, since the input of the decision has changed.
	Outdated Result = "Outdated"
	// Ended means that the reconcile ended without reporting a result, because the API server
	// failed or this process is no longer allowed to act.
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

// wallTime converts a time to the host's clock, in UTC. Waits are measured with the monotonic clock,
// which keeps its pace when someone sets the host's clock. The result has the same distance from
// now as t, so that a replay sees the times in the same order. The zero time stays zero.
func wallTime(t, now time.Time) time.Time {
	wall := t.Round(0)
	if wall == t { //nolint:staticcheck // Unlike Equal, == is false if t has a monotonic reading.
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

// IsRepeatOf reports whether both records have the same decision to wait, from the same facts at
// different times. A difference in the server's progress does not count.
func (r *Record) IsRepeatOf(other *Record) bool {
	if r.Decision.Action.Step != policy.StepNone || other.Decision.Action.Step != policy.StepNone {
		return false
	}
	a, b := r.Input, other.Input
	for _, in := range []*policy.Input{&a, &b} {
		in.Now, in.Since, in.Observed.Server.Progress = time.Time{}, policy.Instants{}, ""
	}
	c, d := r.Decision, other.Decision
	for _, decision := range []*policy.Decision{&c, &d} {
		decision.WakeAt, decision.NextTry, decision.Action.StopBy = time.Time{}, time.Time{}, time.Time{}
	}
	if r.Input.Observed.Server.Progress != "" && other.Input.Observed.Server.Progress != "" {
		c.Status.Message, d.Status.Message = "", ""
	}
	return a == b && c == d
}

// History has the decisions about a VirtualMachine that one replica recorded, the newest last.
type History struct {
	Replica string `json:"replica"`
	Version string `json:"version"`
	// Leads is set if the replica led when it answered the request for its history, and Epoch is the
	// epoch of that leadership. Only a leader decides: if Leads is not set, the decisions are from an
	// earlier term as leader.
	Leads bool   `json:"leads"`
	Epoch uint64 `json:"epoch,omitzero"`
	// Since is when the replica began to record decisions.
	Since time.Time `json:"since"`
	// Dropped is how many decisions about any VirtualMachine the replica dropped to make room.
	Dropped   uint64   `json:"dropped,omitzero"`
	Decisions []Record `json:"decisions"`
}

// Histories are the answers of several replicas, as kubectl vm explain --history -o json prints
// them.
type Histories struct {
	Replicas []History `json:"replicas"`
}

// recordBytes is about how many bytes of memory a record takes in addition to its strings.
const recordBytes = 2048

// Bytes returns about how many bytes of memory the record takes.
func (r *Record) Bytes() int {
	return recordBytes + textBytes(reflect.ValueOf(&r.Input).Elem()) + textBytes(reflect.ValueOf(&r.Decision).Elem())
}

// textBytes returns the total length of the strings in v and in its nested structs.
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
