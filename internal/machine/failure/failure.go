// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failure has the failures of machines and their guests. Only the name of a failure is sent between
// processes; the text is for people.
//
// Start with the list of errors, which are for errors.Is. The first one in the list that an error wraps gives the
// error its name and kind. So a failure stands before those that it may wrap, such as ErrNoAnswer before ErrFailed.
package failure

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Kind says what a caller can do about a failure.
type Kind int

// Kinds of failures. With all but Other, nothing was changed.
const (
	Other         Kind = iota // something may have been changed, or the caller knows more
	Retry                     // a later try may succeed
	Invalid                   // the request is wrong
	Unsupported               // the guest or its agent cannot do it
	Busy                      // a limit is reached, until another caller ends
	Taken                     // another caller writes to the console
	NotFound                  // the guest lacks the program
	NotExecutable             // the guest has the program and cannot run it
)

// Limits that the texts below mention.
const (
	// MaxInput limits a command's input, in bytes. The agent receives the input in one message.
	MaxInput = 2 << 20
	// MaxOutput limits each stream of a command's output, in bytes. The agent itself keeps 16 MiB, too much for the
	// memory of a host with many guests.
	MaxOutput = 3 << 20
	// MaxStreams limits the concurrent commands and consoles of a machine.
	MaxStreams = 32
	// MaxInputs limits the concurrent commands with input, since each input is in memory as a whole.
	MaxInputs = 4
	// InputWithin limits the time until a command's input ends.
	InputWithin = 5 * time.Minute
)

// failure is one of the errors below.
type failure struct {
	name string // as it is sent, "" for a failure that is never sent
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
	// ErrStale means that the request is older than a state that the machine already has.
	ErrStale = declare("Stale", Other, "the machine knows a later state")
	// ErrUnknown means that the machine lacks the forwarded port or the disk, or that the disk cannot grow.
	ErrUnknown = declare("Unknown", Other, "the machine has no such port or disk")
	// ErrRefused means that the guest has refused a connection to a port.
	ErrRefused = declare("Refused", Other, "the guest has refused the connection")
	// ErrNoMachine means that no machine has the name or address, or that the asking machine may not reach it.
	ErrNoMachine = declare("NoMachine", Other, "no machine that may be reached has this name or address")
	// ErrNoAnswer means that the guest does not answer connections to a port.
	ErrNoAnswer = declare("NoAnswer", Other, "the guest does not answer at this port")
)

// Failures of consoles and commands, and of the agent in the guest.
var (
	// ErrTaken means that another caller writes to the console.
	ErrTaken = declare("Taken", Taken, "another caller writes to the console: it may be read, and written to once that caller has left")
	// ErrInputEnded means that the input of the image's command has ended.
	ErrInputEnded = declare("InputEnded", Unsupported, "the input of the command has ended")
	// ErrTooManyStreams means that MaxStreams commands and consoles are open.
	ErrTooManyStreams = declare("Streams", Busy, "%d commands and consoles are already open in this machine, which is the most: end one, or try again when one has ended", MaxStreams)
	// ErrBusy means that another call keeps the agent busy.
	ErrBusy = declare("Busy", Retry, "the machine is busy with other callers: try again")
	// ErrTooManyInputs means that MaxInputs commands with input run.
	ErrTooManyInputs = declare("Inputs", Busy, "%d commands with input already run in the guest, and more are not possible: try again when one of them has ended", MaxInputs)
	// ErrInputOpen and ErrInputTooLong mean that a command's input has not ended in time, or is too long. The command
	// was not started.
	ErrInputOpen    = declare("InputOpen", Invalid, "the input has not ended within %s: the guest agent starts a command only once its input has ended, so pass a file, or use ssh or the console", InputWithin)
	ErrInputTooLong = declare("InputLong", Invalid, "the input has more than %d MiB, which is the limit of the guest agent: use ssh for more", MaxInput>>20)
	// ErrPaused means that the guest is paused.
	ErrPaused = declare("Paused", Retry, "the guest is paused")
	// ErrTerminalUnsupported means that a terminal was requested, which the agent cannot give a command.
	ErrTerminalUnsupported = declare("Terminal", Unsupported, "tty: the QEMU guest agent cannot give a command in this machine a terminal: leave tty out, or use ssh or the console")
	// ErrSettingsUnsupported means that the agent runs every command as root in /, with the environment of the agent.
	ErrSettingsUnsupported = declare("Settings", Unsupported, "user, env, workdir: the QEMU guest agent of this machine runs every command as root in /: leave them out, and use a shell, as in sh -c 'cd /srv; LEVEL=1 make'")
	// ErrCommandNotFound and ErrCommandNotExecutable are reported by the guest. ErrCommand means that a command
	// cannot be started for another reason. IsCommand finds all three.
	ErrCommandNotFound      = declare("CommandNotFound", NotFound, "the command is not found in the guest")
	ErrCommandNotExecutable = declare("CommandNotExecutable", NotExecutable, "the command cannot be executed in the guest")
	ErrCommand              = declare("Command", Invalid, "the command cannot be started")
	// ErrEndUnknown means that the command may have been started, and may still run.
	ErrEndUnknown = declare("EndUnknown", Other, "how the command ends is not known, and it may still run")
	// ErrOutputCut means that a part of the output is missing.
	ErrOutputCut = declare("OutputCut", Unsupported, "the output is longer than %d MiB, which is the limit of the guest agent, and the rest is missing: use ssh for more", MaxOutput>>20)
	// ErrNoAgent means that no program in the guest has opened the agent's device.
	ErrNoAgent = declare("NoAgent", Unsupported, "the guest runs no QEMU guest agent, or has not started it yet: install the package qemu-guest-agent in the guest")
	// ErrDisabled means that the agent lacks a command, or is configured to refuse it. ErrAgentRefused means that
	// the agent has refused for another reason; it is sent as ErrDisabled.
	ErrDisabled     = declare("Disabled", Unsupported, "the guest agent does not allow a command that this needs")
	ErrAgentRefused = declare("Disabled", Unsupported, "the guest agent refuses")
	// ErrSilent means that the agent does not answer in time, or has closed the connection. ErrBadAnswer means that
	// its answer is invalid.
	ErrSilent    = declare("Silent", Retry, "the guest agent does not answer")
	ErrBadAnswer = declare("BadAnswer", Retry, "the guest agent gives an invalid answer")
	// ErrFailed means that QEMU does not answer, or refuses. Errors without a name are sent as ErrFailed.
	ErrFailed = declare("Failed", Retry, "the machine could not carry out the request")
)

// Failures that the client of a machine detects.
var (
	// ErrUnreachable means that the machine sent no answer.
	ErrUnreachable = declare("", Retry, "the machine cannot be reached")
	// ErrIdentity means that another program answers, or the machine refuses this client.
	ErrIdentity = declare("", Retry, "another program answers in place of the machine, or the machine rejects this client's certificate")
	// ErrProtocol means that the answer is invalid.
	ErrProtocol = declare("", Retry, "the machine's answer is invalid")
)

// verbPrefix is the beginning of the name of a MissingVerb failure.
const verbPrefix = "MissingVerb:"

var verbName = regexp.MustCompile(`^` + verbPrefix + `[a-zA-Z]{1,32}$`)

// MissingVerb returns the failure of a guest whose agent lacks an operation.
func MissingVerb(verb string) error {
	return &failure{verbPrefix + verb, Unsupported, fmt.Sprintf("the guest was booted by an earlier version of Drover, whose agent lacks %q: restart the machine to get it", verb)}
}

// findFailure returns the first failure that an error wraps, nil if it wraps none.
func findFailure(err error) *failure {
	for _, f := range all {
		if errors.Is(err, f) {
			return f
		}
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	return nil
}

// NameOf returns the name under which an error is sent, "" for nil.
func NameOf(err error) string {
	if err == nil {
		return ""
	}
	if f := findFailure(err); f != nil && f.name != "" {
		return f.name
	}
	return NameOf(ErrFailed)
}

// ByName returns the error with a name, nil for "", and ErrProtocol for an unknown name.
func ByName(name string) error {
	if name == "" {
		return nil
	}
	for _, f := range all {
		if f.name == name {
			return f
		}
	}
	if verbName.MatchString(name) {
		return MissingVerb(strings.TrimPrefix(name, verbPrefix))
	}
	return fmt.Errorf("%w: it names an unknown failure", ErrProtocol)
}

// KindOf returns the kind of the failure that err wraps, Other if there is none.
func KindOf(err error) Kind {
	if f := findFailure(err); f != nil {
		return f.kind
	}
	return Other
}

// IsCommand reports whether err means that a command cannot be started.
func IsCommand(err error) bool {
	return errors.Is(err, ErrCommand) || errors.Is(err, ErrCommandNotFound) || errors.Is(err, ErrCommandNotExecutable)
}
