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

// Format returns records as text for people: for each record, a line with its time and then its
// sentences. The text may contain unprintable characters from an engine; see printable.Line.
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

// When says when the decision was made, and when it was last repeated.
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

// Sentences say what was observed, what was decided and why, and how the step ended.
func (r *Record) Sentences() []string {
	all := []string{r.specText() + " " + r.observedText()}
	if facts := r.factTexts(); len(facts) > 0 {
		all = append(all, strings.Join(facts, " "))
	}
	all = append(all, r.decisionText())
	if outcome := r.outcomeText(); outcome != "" {
		all = append(all, outcome)
	}
	return all
}

// specText says what the user wants.
func (r *Record) specText() string {
	vm := &r.Input.VM
	if !vm.IsDeleted {
		return fmt.Sprintf("Generation %d of the spec wants the VM %s.", vm.Generation, cmp.Or(string(vm.Spec.Action), string(api.ActionActive)))
	}
	if vm.Spec.DeletionPolicy == api.DeletionRetain {
		return "The VM is being deleted, and its server is kept."
	}
	return "The VM is being deleted."
}

// observedText describes the server as far as it is known.
func (r *Record) observedText() string {
	in := &r.Input
	if in.Driver == "" {
		return "No engine was asked: the VM's driver does not run here."
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

// serverText returns the part of a sentence that describes a server.
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

// factTexts describes the other facts on which the decision may depend, one sentence each.
func (r *Record) factTexts() []string {
	in := &r.Input
	var facts []string
	if in.Done != "" {
		facts = append(facts, fmt.Sprintf("%s has just succeeded.", in.Done))
	}
	if op := &in.VM.Status.Operation; op.Type != "" {
		facts = append(facts, operationText(op, in.Now))
	}
	if s := &in.VM.Status; r.Decision.Action.RecordFirst {
		handled := "No earlier request was handled."
		if !s.RestartedAt.IsZero() {
			handled = "The last handled request is from " + formatInstant(s.RestartedAt) + "."
		}
		facts = append(facts, fmt.Sprintf("The spec requests a restart (%s). %s", formatInstant(in.VM.Spec.RestartedAt), handled))
	}
	if in.Observed.Answer == policy.Present && in.PassedGeneration != in.VM.Generation {
		facts = append(facts, fmt.Sprintf("The driver has only generation %d of the spec.", in.PassedGeneration))
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
		return fmt.Sprintf("According to the status, %s is under way.", op.Type)
	case op.Failure == api.FailureExited:
		return fmt.Sprintf("The server ended too soon %s.", formatCount(op.Attempts))
	}
	text := fmt.Sprintf("%s has failed %s (%s): %s", op.Type, formatCount(op.Attempts), op.Reason, op.LastError)
	if next := op.NextRetryTime; next.After(now) {
		text += fmt.Sprintf("; the next try is at %s", next.UTC().Format(timeFormat))
	}
	return sentence(text)
}

// formatInstant formats a time as manifests write it.
func formatInstant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func formatCount(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}

// verbs describe the operations as predicates of the subject Drover.
var verbs = map[api.OperationType]string{
	api.OperationCreate: "creates the server", api.OperationStart: "starts the server", api.OperationStop: "stops the server",
	api.OperationPause: "pauses the server", api.OperationResume: "resumes the server", api.OperationRestart: "restarts the server",
	api.OperationUpdate: "applies the spec to the server", api.OperationDelete: "removes the server", api.OperationRelease: "releases the server",
}

// decisionText says what was decided, and why, in the words of the status.
func (r *Record) decisionText() string {
	a := &r.Decision.Action
	does := cmp.Or(verbs[a.Operation], string(a.Operation))
	switch {
	case a.Step == policy.StepFinish:
		return "So Drover removes the finalizer, and thereby the object."
	case a.Step != policy.StepNone && a.EndRun != "":
		return fmt.Sprintf("So Drover %s, ending run %s. %s", does, a.EndRun, r.statusText())
	case a.Step != policy.StepNone:
		return fmt.Sprintf("So Drover %s. %s", does, r.statusText())
	case r.Decision.Status.Unchanged:
		return "So Drover waits, and reports nothing yet." + r.wakeText()
	case a.Operation != "":
		return fmt.Sprintf("So Drover waits (%s). %s%s", a.Operation, r.statusText(), r.wakeText())
	}
	return "So there is nothing to do. " + r.statusText() + r.wakeText()
}

// statusText describes the status to report.
func (r *Record) statusText() string {
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

func (r *Record) wakeText() string {
	if r.Decision.WakeAt.IsZero() {
		return ""
	}
	return " Drover looks again in " + r.Decision.WakeAt.Sub(r.At()).Round(time.Millisecond).String() + "."
}

// outcomeText describes the outcome of the step, if the decision has a step.
func (r *Record) outcomeText() string {
	o := &r.Outcome
	after := durationText(o.At.Sub(r.At()))
	switch {
	case o.Result == "" && r.Decision.Action.Step == policy.StepNone:
		return ""
	case o.Result == "":
		return "The outcome is not known: the step was still under way, or the process ended."
	case o.Result == Succeeded:
		return fmt.Sprintf("The step succeeded after %s.", after)
	case o.Result == Outdated:
		return fmt.Sprintf("After %s the decision was found outdated, and Drover decided again.", after)
	}
	text := fmt.Sprintf("The step failed after %s", after)
	if o.Result == Ended {
		text = fmt.Sprintf("The controller's pass ended after %s", after)
	}
	if o.API != "" {
		text += ", since the API server answered " + o.API
	}
	if o.Error != "" {
		text += ": " + o.Error
	}
	return sentence(text)
}

// durationText returns a duration in whole milliseconds.
func durationText(d time.Duration) string {
	if d < time.Millisecond {
		return "less than 1ms"
	}
	return d.Round(time.Millisecond).String()
}

// sentence returns a text that ends with exactly one full stop.
func sentence(text string) string { return strings.TrimSuffix(text, ".") + "." }
