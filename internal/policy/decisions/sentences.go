// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// timeFormat is how times are printed, in UTC.
const timeFormat = "2006-01-02 15:04:05.000Z"

// Format returns records for people to read: for each a line with its time, and its sentences.
// It may contain texts of engines: printable.Line makes them fit for a terminal.
func Format(records ...Record) string {
	var b strings.Builder
	for i := range records {
		r := &records[i]
		fmt.Fprintf(&b, "%s %s\n", r.Key(), r.When())
		for _, sentence := range r.Sentences() {
			fmt.Fprintf(&b, "  %s\n", sentence)
		}
	}
	return b.String()
}

// When says when the decision was made, and until when it was repeated.
func (r *Record) When() string {
	at := r.At().UTC().Format(timeFormat)
	switch {
	case r.Repeats == 1:
		return at + ", and again at " + r.Until.UTC().Format(timeFormat)
	case r.Repeats > 1:
		return fmt.Sprintf("%s, and %d times more until %s", at, r.Repeats, r.Until.UTC().Format(timeFormat))
	}
	return at
}

// Sentences say what was seen, what was decided and why, and how that ended.
func (r *Record) Sentences() []string {
	all := []string{r.wanted() + " " + r.seen()}
	if facts := r.facts(); len(facts) > 0 {
		all = append(all, strings.Join(facts, " "))
	}
	all = append(all, r.decided())
	if outcome := r.outcome(); outcome != "" {
		all = append(all, outcome)
	}
	return all
}

// wanted says what the user wants.
func (r *Record) wanted() string {
	vm := &r.Input.VM
	if !vm.IsDeleted {
		return fmt.Sprintf("Generation %d wants it %s.", vm.Generation, cmp.Or(string(vm.Spec.Action), string(api.ActionActive)))
	}
	if vm.Spec.DeletionPolicy == api.DeletionRetain {
		return "It is being deleted, and its server is kept."
	}
	return "It is being deleted."
}

// seen describes the server as far as it is known.
func (r *Record) seen() string {
	in := &r.Input
	if in.Driver == "" {
		return "No engine was asked: its driver does not run here."
	}
	o, engine := &in.Observed, "The "+in.Driver+" engine"
	switch o.Answer {
	case policy.Gone:
		return engine + " does not have a server."
	case policy.Present:
		if ids := o.Duplicates.Names(); len(ids) > 0 {
			return fmt.Sprintf("%s has %d servers: %s.", engine, len(ids), strings.Join(ids, ", "))
		}
		return engine + " has " + serverText(&o.Server) + "."
	default: // Unknown
		if o.Cause == "" {
			return engine + " was not listed yet."
		}
		return sentence(engine + " cannot be asked: " + o.Cause)
	}
}

// serverText describes a server as a part of a sentence.
func serverText(s *policy.Server) string {
	text := "a server"
	if s.ID != "" {
		text = "server " + s.ID
	}
	text += ", " + string(s.State)
	if e := s.Exit; e.HasEnded {
		text += fmt.Sprintf(" (ended with code %d", e.Code)
		if e.Reason != "" {
			text += ", " + e.Reason
		}
		text += ")"
	}
	if s.Progress != "" {
		text += " (" + s.Progress + ")"
	}
	if s.Error != "" {
		text += ", with an error: " + strings.TrimSuffix(s.Error, ".")
	}
	return text
}

// facts describes further facts that were considered.
func (r *Record) facts() []string {
	in := &r.Input
	var facts []string
	if in.Done != "" {
		facts = append(facts, fmt.Sprintf("%s has just succeeded.", in.Done))
	}
	if op := &in.VM.Status.Operation; op.Type != "" {
		facts = append(facts, operationText(op, in.Now))
	}
	if s := &in.VM.Status; r.Decision.Action.RecordFirst {
		handled := "none was handled before"
		if !s.RestartedAt.IsZero() {
			handled = "that at " + instant(s.RestartedAt) + " was the last"
		}
		facts = append(facts, fmt.Sprintf("The spec asks for a restart at %s, and %s.", instant(in.VM.Spec.RestartedAt), handled))
	}
	if in.Observed.Answer == policy.Present && in.PassedGeneration != in.VM.Generation {
		facts = append(facts, fmt.Sprintf("The driver has generation %d of the spec.", in.PassedGeneration))
	}
	if in.Probe.Wanted && in.Probe.Completed && !in.Probe.OK && in.Observed.Server.State == policy.StateRunning {
		facts = append(facts, sentence("The probe fails: "+in.Probe.Message))
	}
	if in.DeletionBlocker != "" {
		facts = append(facts, sentence("The deletion waits: "+in.DeletionBlocker))
	}
	return facts
}

func operationText(op *policy.Operation, now time.Time) string {
	switch {
	case op.Attempts == 0:
		return fmt.Sprintf("The status has %s as under way.", op.Type)
	case op.Failure == api.FailureExited:
		return fmt.Sprintf("The server ended too soon %s.", times(op.Attempts))
	}
	text := fmt.Sprintf("%s has failed %s (%s): %s", op.Type, times(op.Attempts), op.Reason, op.LastError)
	if next := op.NextRetryTime; next.After(now) {
		text += fmt.Sprintf("; to be tried again at %s", next.UTC().Format(timeFormat))
	}
	return sentence(text)
}

// instant formats a time as a spec has it.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}

// verbs say what Drover does for an operation.
var verbs = map[api.OperationType]string{
	api.OperationCreate: "creates the server", api.OperationStart: "starts the server", api.OperationStop: "stops the server",
	api.OperationPause: "pauses the server", api.OperationResume: "resumes the server", api.OperationRestart: "restarts the server",
	api.OperationUpdate: "applies the spec to the server", api.OperationDelete: "removes the server", api.OperationRelease: "releases the server",
}

// decided says what was decided, and why, as the status has it.
func (r *Record) decided() string {
	a := &r.Decision.Action
	does := cmp.Or(verbs[a.Operation], string(a.Operation))
	switch {
	case a.Step == policy.StepFinish:
		return "So Drover removes the finalizer, and the object with it."
	case a.Step != policy.StepNone && a.EndRun != "":
		return fmt.Sprintf("So Drover %s, ending run %s. %s", does, a.EndRun, r.reported())
	case a.Step != policy.StepNone:
		return fmt.Sprintf("So Drover %s. %s", does, r.reported())
	case r.Decision.Status.Unchanged:
		return "So Drover waits, and reports nothing yet." + r.wakes()
	case a.Operation != "":
		return fmt.Sprintf("So Drover waits (%s). %s%s", a.Operation, r.reported(), r.wakes())
	}
	return "So there is nothing to do. " + r.reported() + r.wakes()
}

// reported describes the status to report.
func (r *Record) reported() string {
	s := &r.Decision.Status
	text := fmt.Sprintf("The status is %s, %s", s.Phase, s.Reason)
	if s.Ready {
		text += ", ready"
	}
	if s.Message != "" {
		text += ": " + s.Message
	}
	return sentence(text)
}

func (r *Record) wakes() string {
	if r.Decision.WakeAt.IsZero() {
		return ""
	}
	return " It looks again in " + r.Decision.WakeAt.Sub(r.At()).Round(time.Millisecond).String() + "."
}

// outcome describes the outcome of a step.
func (r *Record) outcome() string {
	o := &r.Outcome
	after := durationText(o.At.Sub(r.At()))
	switch {
	case o.Result == "" && r.Decision.Action.Step == policy.StepNone:
		return ""
	case o.Result == "":
		return "Its outcome is not known: it was still under way, or the process ended."
	case o.Result == Succeeded:
		return fmt.Sprintf("It succeeded after %s.", after)
	case o.Result == Outdated:
		return fmt.Sprintf("After %s it was found outdated, and Drover decided again.", after)
	}
	text := fmt.Sprintf("It failed after %s", after)
	if o.Result == Ended {
		text = fmt.Sprintf("The pass ended after %s", after)
	}
	if o.API != "" {
		text += ", since the API server answered " + o.API
	}
	if o.Error != "" {
		text += ": " + o.Error
	}
	return sentence(text)
}

// durationText returns a duration with its first digits.
func durationText(d time.Duration) string {
	if d < time.Millisecond {
		return "less than 1ms"
	}
	return d.Round(time.Millisecond).String()
}

// sentence ends a text with a full stop.
func sentence(text string) string { return strings.TrimSuffix(text, ".") + "." }
