// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/advice"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// Verdict says whether a user has to act.
type Verdict int

// The verdicts, which are exit codes of explain.
const (
	verdictHealthy  Verdict = 0
	verdictWaiting  Verdict = 1
	verdictNeedsYou Verdict = 2
)

const (
	// controllerDelay is how long a running controller may take to see a change.
	controllerDelay = 30 * time.Second
	// maxUnreadyTime and maxAttempts are the limits after which a user should look at a failure
	// that may be transient.
	maxUnreadyTime = 10 * time.Minute
	maxAttempts    = 5
)

// diagnosis is the result of the command explain for a VM.
type diagnosis struct {
	verdict  Verdict
	headline string
	// message is the message of the status, as the controller wrote it.
	message string
	// facts say what is known, and steps say what to do, in sentences.
	facts, steps []string
}

// diagnoseVM returns the diagnosis of a VM.
func (d describer) diagnoseVM(vm *api.VirtualMachine) diagnosis {
	known, ok := advice.Find(vm.Status.Reason)
	found := diagnosis{message: printable.Line(vm.Status.Message), verdict: verdictOf(vm, known, d.now)}
	if ok {
		found.facts = append(found.facts, known.Means)
	}
	found.headline = headlineOf(vm, found.verdict)
	if isUnseen(vm) {
		found.facts = append(found.facts, unseenText(vm))
	}
	found.facts = slices.Concat(found.facts, d.operationFacts(vm), d.conditionFacts(vm), []string{engineFact(vm)})
	found.steps = d.stepsFor(vm, known, found.verdict)
	return found
}

// verdictOf returns whether a user has to act.
func verdictOf(vm *api.VirtualMachine, known advice.Advice, now time.Time) Verdict {
	blocked := vms.ConditionOf(vm, api.ConditionDeletionBlocked).Status == metav1.ConditionTrue
	switch {
	case isUnseen(vm):
		return verdictIf(now.Sub(changedAt(vm)) > controllerDelay)
	case vm.DeletionTimestamp != nil:
		return verdictIf(blocked && needsAction(vm, known, now))
	case vms.IsReady(vm):
		return verdictHealthy
	case vms.IsStalled(vm):
		return verdictNeedsYou
	}
	return verdictIf(needsAction(vm, known, now))
}

func verdictIf(needsYou bool) Verdict {
	if needsYou {
		return verdictNeedsYou
	}
	return verdictWaiting
}

// needsAction reports whether a user has to act, because nothing else helps or because waiting has not
// helped.
func needsAction(vm *api.VirtualMachine, known advice.Advice, now time.Time) bool {
	if known.Need != advice.Attention {
		return known.Need == advice.Action
	}
	since := vms.ConditionOf(vm, api.ConditionReady).LastTransitionTime
	op := vm.Status.Operation
	return (op != nil && op.Attempts >= maxAttempts) || (!since.IsZero() && now.Sub(since.Time) > maxUnreadyTime)
}

// isUnseen reports whether no controller has seen the VM, or the last change of its spec.
func isUnseen(vm *api.VirtualMachine) bool { return vm.Status.Phase == "" || !vms.IsObserved(vm) }

// changedAt returns when anyone other than the controller last changed the VM.
func changedAt(vm *api.VirtualMachine) time.Time {
	at := vm.CreationTimestamp.Time
	for _, entry := range vm.ManagedFields {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(at) {
			at = entry.Time.Time
		}
	}
	return at
}

func headlineOf(vm *api.VirtualMachine, v Verdict) string {
	state := vms.StateCell(vm).Text
	if r := vm.Status.Reason; r != "" && r != state {
		state += ", " + r
	}
	switch {
	case vm.Status.Phase == "":
		return vm.Name + " has not been seen by any controller yet"
	case vm.DeletionTimestamp != nil:
		return vm.Name + " is being deleted: " + state
	case v == verdictHealthy:
		return vm.Name + " is ready: " + state
	}
	return vm.Name + " is not ready: " + state
}

func unseenText(vm *api.VirtualMachine) string {
	if vm.Status.Phase == "" {
		return "No controller has written a status."
	}
	return fmt.Sprintf("The controller has not seen the last change of the spec: the spec has generation %d, and the status is about generation %d.",
		vm.Generation, vm.Status.ObservedGeneration)
}

// gerunds describe the operations after "Drover has been".
var gerunds = map[api.OperationType]string{
	api.OperationCreate: "creating the server", api.OperationStart: "starting the server", api.OperationStop: "stopping the server",
	api.OperationPause: "pausing the server", api.OperationResume: "resuming the server", api.OperationRestart: "restarting the server",
	api.OperationUpdate: "applying a change to the server", api.OperationDelete: "removing the server", api.OperationRelease: "releasing the server",
}

// operationFacts describes the operation in progress, if there is one.
func (d describer) operationFacts(vm *api.VirtualMachine) []string {
	op := vm.Status.Operation
	switch {
	case op == nil:
		return nil
	case vms.OnlyCountsRestarts(vm):
		return []string{"The server was started again " + timesText(int(op.Attempts)) + ", the last time because: " + printable.Line(op.LastError)}
	}
	text := fmt.Sprintf("Drover has been %s for %s.", cmp.Or(gerunds[op.Type], string(op.Type)), vms.AgeText(d.now, op.StartedAt.Time))
	if op.Attempts > 0 {
		text += " This has failed " + timesText(int(op.Attempts))
		if op.Reason != "" && op.Reason != vm.Status.Reason {
			text += ", most recently with reason " + op.Reason
		}
		text += "."
	}
	facts := []string{text + d.retryText(op)}
	if e := printable.Line(op.LastError); e != "" && !strings.Contains(printable.Line(vm.Status.Message), e) {
		facts = append(facts, "The last error: "+e)
	}
	return facts
}

// timesText returns how often something happened in a row.
func timesText(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}

// retryText says when a failed operation is tried again.
func (d describer) retryText(op *api.Operation) string {
	switch {
	case op.Failure == api.FailureRefused:
		return " Drover tries again when the spec changes, and once after a restart of Drover."
	case op.NextRetryTime == nil:
		return ""
	}
	wait := op.NextRetryTime.Sub(d.now).Round(time.Second)
	if wait <= 0 {
		return " The next try is due."
	}
	return fmt.Sprintf(" The next try is in %s, at %s.", wait, instantText(op.NextRetryTime.Time))
}

// conditionFacts returns the facts that the conditions add to the reason.
func (d describer) conditionFacts(vm *api.VirtualMachine) []string {
	var facts []string
	if ready := vms.ConditionOf(vm, api.ConditionReady); ready.Type != "" {
		facts = append(facts, fmt.Sprintf("Condition Ready has been %s for %s.", ready.Status, vms.AgeText(d.now, ready.LastTransitionTime.Time)))
	}
	if vms.IsStalled(vm) {
		facts = append(facts, "Condition Stalled is True: only a change of the spec can help.")
	}
	if c := vms.ConditionOf(vm, api.ConditionDeletionBlocked); c.Status == metav1.ConditionTrue {
		facts = append(facts, "Condition DeletionBlocked is True: the deletion cannot complete.")
	}
	facts = append(facts, d.pendingFacts(vm)...)
	if c := vms.ConditionOf(vm, api.ConditionConfined); c.Status == metav1.ConditionFalse {
		facts = append(facts, "Condition Confined is False: "+printable.Line(c.Message))
	}
	if c := vms.ConditionOf(vm, api.ConditionFilesCurrent); c.Status == metav1.ConditionFalse {
		facts = append(facts, "Condition FilesCurrent is False: "+printable.Line(c.Message))
	}
	return facts
}

// pendingFacts says which fields of the spec the server does not have yet, or cannot have.
func (d describer) pendingFacts(vm *api.VirtualMachine) []string {
	var facts []string
	if fields := vm.Status.PendingFields; len(fields) > 0 {
		facts = append(facts, fmt.Sprintf("Fields that wait for the next restart (%s restart %s): %s.", d.program, vm.Name, strings.Join(fields, ", ")))
	}
	if r := vm.Status.RefusedField; r != nil && r.Message != vm.Status.Message {
		facts = append(facts, "The driver refuses the field "+printable.Line(r.Field+": "+r.Message))
	}
	return facts
}

// engineFact returns a sentence about the engine.
func engineFact(vm *api.VirtualMachine) string {
	driver := vms.DriverOf(vm)
	if driver == "" {
		return "The VM is not bound to an engine yet."
	}
	name := "The engine of driver " + driver
	if b := vm.Status.Binding; b != nil {
		name += " (" + servers.ShortID(b.EngineID) + ")"
	}
	switch c := vms.ConditionOf(vm, api.ConditionObserved); c.Status {
	case metav1.ConditionTrue:
		return name + " answers" + serverText(vm) + "."
	case metav1.ConditionFalse:
		return name + " cannot be queried: " + c.Reason + "."
	default:
		return name + " has not been queried yet."
	}
}

// serverText describes the server that the engine has, as the end of a sentence about the engine.
func serverText(vm *api.VirtualMachine) string {
	switch s := vm.Status.Server; {
	case s == nil:
		return ", but it does not have the server"
	case s.ID == "":
		return ": the server is " + printable.Line(s.State)
	default:
		return fmt.Sprintf(": server %s is %s", servers.ShortID(s.ID), printable.Line(s.State))
	}
}

// stepsFor returns the recommended steps for a VM.
func (d describer) stepsFor(vm *api.VirtualMachine, known advice.Advice, v Verdict) []string {
	switch {
	case isUnseen(vm) && v == verdictNeedsYou:
		return []string{fmt.Sprintf("The change is %s old. Is Drover running (drover up, or drover-controller), and can it reach this cluster? Drover's log has the details.",
			vms.AgeText(d.now, changedAt(vm)))}
	case isUnseen(vm):
		return []string{"Wait: a running controller sees a change within a second."}
	}
	var steps []string
	if text := known.Steps(d.namesOf(vm)); text != "" {
		steps = append(steps, text)
	} else if v == verdictWaiting {
		steps = append(steps, "Nothing: Drover continues by itself.")
	}
	for _, condition := range []string{api.ConditionFilesCurrent, api.ConditionConfined} {
		c, ok := advice.Find(vms.ConditionOf(vm, condition).Reason)
		if text := c.Steps(d.namesOf(vm)); ok && v == verdictHealthy && text != "" {
			steps = append(steps, text)
		}
	}
	return steps
}

// namesOf returns the words for the placeholders in the advice about a VM.
func (d describer) namesOf(vm *api.VirtualMachine) advice.Names {
	return advice.Names{Program: d.program, Kubectl: d.kubectl, VM: vm.Name, Driver: vms.DriverOf(vm)}
}
