// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failure has the failures of machines and their guests. A machine sends only the name of a failure, and
// its text is for people.
//
// Start with the list of errors, which are for errors.Is. A failure that another one may wrap comes after it, as in
// "no answer: it has refused": the first of the list gives an error its name and kind.
package failure

import (
	"errors"
	"fmt"
	"time"
)

// Kind says what whoever has asked can do about a failure.
type Kind int

// Kinds, of which all but the first say what was changed: nothing.
const (
	Other         Kind = iota // something may have been changed, or the caller knows more
	Retry                     // nothing was changed, and a later try may succeed
	Invalid                   // the request is wrong
	Unsupported               // the guest or its agent cannot do it
	Taken                     // another caller writes to the console
	NotFound                  // the guest lacks the program
	NotExecutable             // the guest has the program and cannot run it
)

// Limits that texts mention.
const (
	// MaxInput limits a command's input, which the agent takes at once, in bytes.
	MaxInput = 2 << 20
	// MaxOutput limits each stream of a command's output, in bytes. The agent itself keeps 16 MiB, too much for the
	// memory of a host with many guests.
	MaxOutput = 3 << 20
	// MaxInputs limits the concurrent commands with input, since the agent receives an input as a whole.
	MaxInputs = 4
	// InputWithin limits how long a command's input may take to end.
	InputWithin = 5 * time.Minute
)

// failure is one of the errors below.
type failure struct {
	name string // on the wire, "" for one that is not sent
	kind Kind
	text string
}

// Error implements error.
func (f *failure) Error() string { return f.text }

// all has the failures in their order.
var all []*failure

func declare(name string, kind Kind, format string, args ...any) error {
	f := &failure{name, kind, fmt.Sprintf(format, args...)}
	all = append(all, f)
	return f
}

// Failures of a machine.
var (
	// ErrNotRunning means that the guest does not run yet, waits for its disk, or is being stopped.
	ErrNotRunning = declare("NotRunning", Retry, "the guest does not run, or is being stopped")
	// ErrFenced means that a later leader has changed the machine.
	ErrFenced = declare("Fenced", Other, "a later leader has changed the machine")
	// ErrStale means that the machine has learned of a later state already.
	ErrStale = declare("Stale", Other, "the machine knows a later state")
	// ErrUnknown means that the machine has no such forwarded port or disk, or the disk cannot grow.
	ErrUnknown = declare("Unknown", Other, "the machine has no such port or disk")
	// ErrRefused means that the guest has refused a connection to a port.
	ErrRefused = declare("Refused", Other, "the guest has refused the connection")
	// ErrNoMachine means that there is no machine of that name or address that the one that asks may know.
	ErrNoMachine = declare("NoMachine", Other, "no machine that may be reached has this name or address")
	// ErrNoAnswer means that the guest has not answered at a port.
	ErrNoAnswer = declare("NoAnswer", Other, "the guest does not answer at this port")
)

// Failures of consoles and commands, and of the agent in the guest.
var (
	// ErrTaken means that another caller writes to the console.
	ErrTaken = declare("Taken", Taken, "another caller writes to the console: it may be read, and written to once that caller has left")
	// ErrBusy means that the machine has the most streams that it may have, or its agent is busy.
	ErrBusy = declare("Busy", Retry, "the machine is busy with other callers: try again")
	// ErrInputs means that MaxInputs commands with input run.
	ErrInputs = declare("Inputs", Retry, "%d commands with input run in the guest, which is the most: try again when one of them has ended", MaxInputs)
	// ErrInputOpen and ErrInputLong mean that a command's input has not ended in time, or is too long. The command
	// was not started.
	ErrInputOpen = declare("InputOpen", Invalid, "the input has not ended within %s: the guest agent starts a command only then, so pass a file, or use ssh or the console", InputWithin)
	ErrInputLong = declare("InputLong", Invalid, "the input has more than %d MiB, which is the limit of the guest agent: use ssh for more", MaxInput>>20)
	// ErrPaused means that the guest is paused.
	ErrPaused = declare("Paused", Retry, "the guest is paused")
	// ErrTerminal means that the agent gives no command a terminal.
	ErrTerminal = declare("Terminal", Unsupported, "tty: a command in this machine runs without a terminal, because the QEMU guest agent gives it none: leave it out, or use ssh or the console")
	// ErrCommandNotFound and ErrCommandNotExecutable mean that the guest reports why a command cannot be started, and
	// ErrCommand that it cannot be for another reason: IsCommand.
	ErrCommandNotFound      = declare("CommandNotFound", NotFound, "the command is not found in the guest")
	ErrCommandNotExecutable = declare("CommandNotExecutable", NotExecutable, "the command cannot be executed in the guest")
	ErrCommand              = declare("Command", Invalid, "the command cannot be started")
	// ErrEndUnknown means that the command may have been started, and may still run.
	ErrEndUnknown = declare("EndUnknown", Other, "how the command ends is not known, and it may still run")
	// ErrOutputCut means that a part of the output is missing.
	ErrOutputCut = declare("OutputCut", Unsupported, "the output is longer than %d MiB, which is the limit of the guest agent, and the rest is missing: use ssh for more", MaxOutput>>20)
	// ErrNoAgent means that no agent has opened its device in the guest.
	ErrNoAgent = declare("NoAgent", Unsupported, "the guest runs no QEMU guest agent, or has not started it yet: install the package qemu-guest-agent in the guest")
	// ErrDisabled means that the agent lacks what it was asked for, or is configured to refuse it. ErrAgentRefused, which
	// is sent as ErrDisabled, means that it has refused for another reason.
	ErrDisabled     = declare("Disabled", Unsupported, "the guest agent does not allow what this needs")
	ErrAgentRefused = declare("Disabled", Unsupported, "the guest agent refuses")
	// ErrSilent means that the agent does not answer in time, or has hung up. ErrBadAnswer means that its answer is
	// invalid.
	ErrSilent    = declare("Silent", Retry, "the guest agent does not answer")
	ErrBadAnswer = declare("BadAnswer", Retry, "the guest agent gives an invalid answer")
	// ErrFailed means that QEMU does not answer, or refuses. Errors without another name are sent as this one.
	ErrFailed = declare("Failed", Retry, "the machine could not do it")
)

// Failures that a client of a machine finds out.
var (
	// ErrUnreachable means that the machine sent no answer.
	ErrUnreachable = declare("", Retry, "the machine cannot be reached")
	// ErrIdentity means that another program answers, or the machine refuses this client.
	ErrIdentity = declare("", Retry, "it is not the machine that answers, or it does not take this client's certificate")
	// ErrProtocol means that the answer is invalid.
	ErrProtocol = declare("", Retry, "the machine's answer is not understood")
)

// findFailure returns the first failure that an error wraps, nil if it wraps none.
func findFailure(err error) *failure {
	for _, f := range all {
		if errors.Is(err, f) {
			return f
		}
	}
	return nil
}

// NameOf returns the name by which an error is sent, "" for nil.
func NameOf(err error) string {
	if err == nil {
		return ""
	}
	if f := findFailure(err); f != nil && f.name != "" {
		return f.name
	}
	return NameOf(ErrFailed)
}

// ByName returns the error of a name, nil for "". It is ErrProtocol for a name that is not known.
func ByName(name string) error {
	if name == "" {
		return nil
	}
	for _, f := range all {
		if f.name == name {
			return f
		}
	}
	return fmt.Errorf("%w: an unknown failure", ErrProtocol)
}

// KindOf returns the kind of an error, Other for one that is not a failure of a machine.
func KindOf(err error) Kind {
	if f := findFailure(err); f != nil {
		return f.kind
	}
	return Other
}

// IsCommand reports whether an error says why a command cannot be started.
func IsCommand(err error) bool {
	return errors.Is(err, ErrCommand) || errors.Is(err, ErrCommandNotFound) || errors.Is(err, ErrCommandNotExecutable)
}
