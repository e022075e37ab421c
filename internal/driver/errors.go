// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"regexp"
)

// The kinds of failure that a driver distinguishes. Make them with Errorf, which
// describes the failure, or wrap them with %w; test with errors.Is.
var (
	// ErrNotFound means that the server does not exist.
	ErrNotFound = errors.New("not found")
	// ErrInvalid means that the spec is wrong; final until it changes. Name the field.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported means that the driver cannot honour a field of the spec; final until
	// it changes. Name the field.
	ErrUnsupported = errors.New("unsupported")
	// ErrRetry means that nothing was changed and a later try may succeed, as with a
	// missing image or a failed pull.
	ErrRetry = errors.New("try again")
	// ErrExhausted means that the engine lacks enough of a resource; the message has the
	// needed and the available amount. Retried slowly.
	ErrExhausted = errors.New("exhausted")
	// ErrUnavailable means that the engine cannot be reached and the state is unknown.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrFenced means that the engine refuses this process, because a newer epoch has
	// acted. Nothing was changed.
	ErrFenced = errors.New("fenced")
	// ErrNotLeading means that this process is not certain to be the leader, so the
	// engine was not called. No driver returns it; the fencing decorator does.
	ErrNotLeading = errors.New("not leading")
	// ErrDeposed means that the right to act ended during the call, whose mutation may
	// have been done nevertheless.
	ErrDeposed = errors.New("deposed")
)

// ErrBusy means that a server runs as many commands and consoles as it can. The error's text has the limit.
var ErrBusy = errors.New("as many run as can")

// ErrConsoleTaken means that another caller writes to the console.
var ErrConsoleTaken = errors.New("another caller writes to the console: it may be read, and written to once that caller has left")

// Kinds of ErrInvalid for a command that cannot be started.
var (
	// ErrCommandNotFound means that the server has no such program.
	ErrCommandNotFound = Errorf(ErrInvalid, "command not found")
	// ErrCommandNotExecutable means that the server has the program but cannot run it.
	ErrCommandNotExecutable = Errorf(ErrInvalid, "command not executable")
)

var (
	saysNotFound      = regexp.MustCompile(`(?i)executable file not found|no such file or directory`)
	saysNotExecutable = regexp.MustCompile(`(?i)permission denied|is a directory|not a directory|exec format error|invalid argument|argument list too long|file name too long`)
)

// CommandError returns the kind of error behind a refusal to start a command, recognized by the
// words that Linux uses. It returns nil if the next try could succeed.
func CommandError(refusal string) error {
	switch {
	case saysNotFound.MatchString(refusal):
		return ErrCommandNotFound
	case saysNotExecutable.MatchString(refusal):
		return ErrCommandNotExecutable
	}
	return nil
}

type kindError struct {
	kind, err error
}

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.err, e.kind} }

// Errorf returns an error of the given kind (one of the sentinels above) that
// reads as the formatted text only; %w works in the format as in fmt.Errorf.
func Errorf(kind error, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// Reasons that a driver may attach to an error with WithReason. They are shown
// as status.reason.
const (
	ReasonImageUnavailable = "ImageUnavailable"
	ReasonNameConflict     = "NameConflict"
	ReasonDuplicate        = "Duplicate"
	ReasonPortConflict     = "PortConflict"
	ReasonImageImmutable   = "ImageImmutable"
	ReasonDiskError        = "DiskError"

	ReasonMachineTypeUnavailable = "MachineTypeUnavailable"
	ReasonMachineUserUnavailable = "MachineUserUnavailable"
)

// RecordFirstError is the error of an Ensure that changed nothing, because the VirtualMachine's
// status has to record Objects first. The caller records them and calls again. It is an ErrRetry.
type RecordFirstError struct {
	Objects []Object
	// Failure is why the call has failed, nil if it only has to be repeated. It counts once Objects
	// are recorded.
	Failure error
}

// Error implements error.
func (e *RecordFirstError) Error() string {
	if e.Failure != nil {
		return e.Failure.Error()
	}
	return "objects have to be recorded in the status before they are created"
}

// Unwrap returns the kind of the error.
func (e *RecordFirstError) Unwrap() error { return ErrRetry }

type reasonError struct {
	reason string
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// WithReason attaches a CamelCase reason to err. A nil err stays nil.
func WithReason(reason string, err error) error {
	if err == nil {
		return nil
	}
	return &reasonError{reason: reason, err: err}
}

// ReasonOf returns the reason attached to err, or "".
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*reasonError](err); ok {
		return e.reason
	}
	return ""
}

// MayNotAct reports whether a call failed because the caller lacked the right to
// act. Such a failure proves nothing about the server.
func MayNotAct(err error) bool {
	return errors.Is(err, ErrFenced) || errors.Is(err, ErrNotLeading) || errors.Is(err, ErrDeposed)
}

// Ambiguous reports whether a mutation that failed with err may have been done
// nevertheless, now or a little later. That is so for every error that no sentinel
// explains, and for an engine that became unreachable during the call.
func Ambiguous(err error) bool {
	if err == nil {
		return false
	}
	for _, unambiguous := range []error{ErrNotFound, ErrInvalid, ErrUnsupported, ErrRetry, ErrExhausted, ErrFenced, ErrNotLeading} {
		if errors.Is(err, unambiguous) {
			return false
		}
	}
	return true
}
