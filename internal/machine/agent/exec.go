// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// maxArguments is how long a command may be, as Linux limits one argument.
	maxArguments = 128 << 10
	// quickPoll is the time after which a command that was just started is asked about, over the
	// same connection: most commands take no longer.
	quickPoll = 20 * time.Millisecond
	// firstPoll and lastPoll are the intervals between two questions for a command's end.
	firstPoll, lastPoll = 50 * time.Millisecond, time.Second
	// maxSilence is how long an agent may not answer while a command runs in its guest. Time in
	// which the agent is busy with other clients, each for up to conversationLimit, is not counted.
	maxSilence = 30 * time.Second
	// endWithin is how long ending a command may take whose caller has left.
	endWithin = 10 * time.Second
)

// Words of Linux in a refusal to start a command.
var (
	saysNotFound      = regexp.MustCompile(`(?i)executable file not found|no such file or directory`)
	saysNotExecutable = regexp.MustCompile(`(?i)permission denied|is a directory|not a directory|exec format error|invalid argument|argument list too long|file name too long`)
)

// refusalOf returns what the agent's refusal to start a command means.
func refusalOf(refusal error) error {
	kind := failure.ErrCommand
	switch text := refusal.Error(); {
	case saysNotFound.MatchString(text):
		kind = failure.ErrCommandNotFound
	case saysNotExecutable.MatchString(text):
		kind = failure.ErrCommandNotExecutable
	}
	return fmt.Errorf("%w: %w", kind, refusal)
}

// Command is a program to run in the guest, with its arguments.
type Command struct {
	Args  []string
	Stdin []byte
	// Results, if not nil, bounds the results in memory. The agent is asked for a command's end
	// only with 1 of it, which the caller of Exec releases once it is done with the result.
	Results *semaphore.Weighted
}

func (c Command) claimResult(ctx context.Context) error {
	if c.Results == nil {
		return nil
	}
	return c.Results.Acquire(ctx, 1)
}

func (c Command) tryClaimResult() bool { return c.Results == nil || c.Results.TryAcquire(1) }

func (c Command) releaseResult() {
	if c.Results != nil {
		c.Results.Release(1)
	}
}

// Result is how a command ended, and its output.
type Result struct {
	// ExitCode is 128 plus the signal's number if a signal ended the command.
	ExitCode       int
	Stdout, Stderr []byte
}

// CheckExec fails unless the agent answers, and can run commands.
func (a Agent) CheckExec(ctx context.Context) error { return a.withConversation(ctx, requireExec) }

func requireExec(c *conversation) error {
	return c.requireCommands("guest-exec", "guest-exec-status")
}

// Exec runs a command in the guest until it ends. Before that it returns no output. If ctx ends
// first, Exec ends the command where the guest has a program for that. With failure.ErrOutputCut there
// is a result too.
func (a Agent) Exec(ctx context.Context, command Command) (Result, error) {
	if err := command.Check(); err != nil {
		return Result{}, err
	}
	pid, status, err := a.beginCommand(ctx, command)
	if err != nil {
		return Result{}, err
	}
	if !status.Exited {
		if status, err = a.waitEnd(ctx, pid, command); err != nil {
			if ctx.Err() != nil {
				a.forgetCommand(ctx, pid)
			}
			return Result{}, err
		}
	}
	result, err := status.resultOf()
	if err != nil && !errors.Is(err, failure.ErrOutputCut) {
		command.releaseResult()
	}
	return result, err
}

// beginCommand starts a command, and asks once for its end. An answer to that which is missing or
// wrong is left to the next question.
func (a Agent) beginCommand(ctx context.Context, command Command) (pid int64, status execStatus, err error) {
	isSent := false
	err = a.withConversation(ctx, func(c *conversation) (err error) {
		if err := requireExec(c); err != nil {
			return err
		}
		isSent = true
		if pid, err = c.startCommand(command); err != nil || !a.waitFor(ctx, quickPoll) || !command.tryClaimResult() {
			return err
		}
		if now, err := c.commandStatus(pid); err == nil && now.Exited {
			status = now
		} else {
			command.releaseResult()
		}
		return nil
	})
	if err != nil && isSent && ctx.Err() == nil && !failure.IsCommand(err) && !errors.Is(err, failure.ErrDisabled) {
		err = endUnknown(err)
	}
	return pid, status, err
}

// Check refuses a command that no guest can start.
func (c Command) Check() error {
	size := 0
	for i, arg := range c.Args {
		size += len(arg)
		if !utf8.ValidString(arg) || strings.ContainsRune(arg, 0) {
			return fmt.Errorf("%w: command[%d] is %.80q: it must be UTF-8 without zero bytes", failure.ErrCommand, i, arg)
		}
	}
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return fmt.Errorf("%w: it is empty: name a program", failure.ErrCommand)
	case size > maxArguments:
		return fmt.Errorf("%w: it has %d bytes: at most %d are possible", failure.ErrCommand, size, maxArguments)
	case len(c.Stdin) > failure.MaxInput:
		return fmt.Errorf("%w: its input has more than %d MiB, which is the limit of the guest agent: use ssh for more", failure.ErrCommand, failure.MaxInput>>20)
	}
	return nil
}

// startCommand starts a command, and returns its process ID in the guest.
func (c *conversation) startCommand(command Command) (pid int64, err error) {
	arguments := struct {
		Path    string   `json:"path"`
		Args    []string `json:"arg,omitempty"`
		Input   []byte   `json:"input-data,omitempty"` // in base64
		Capture bool     `json:"capture-output"`
	}{command.Args[0], command.Args[1:], command.Stdin, true}
	var started struct {
		PID *int64 `json:"pid"`
	}
	err = c.executeCommand("guest-exec", arguments, &started)
	switch {
	case errors.Is(err, failure.ErrAgentRefused):
		return 0, refusalOf(err)
	case err != nil:
		return 0, err
	case started.PID == nil || *started.PID <= 0:
		return 0, fmt.Errorf("%w: a command lacks a process ID", failure.ErrBadAnswer)
	}
	return *started.PID, nil
}

// waitEnd asks for a command's end until it has ended. An agent that does not answer for a
// while, as in a guest that is busy, may answer later.
func (a Agent) waitEnd(ctx context.Context, pid int64, command Command) (execStatus, error) {
	answered := a.Clock.Now()
	for wait := firstPoll; a.waitFor(ctx, wait); wait = min(2*wait, lastPoll) {
		claims := a.Clock.Now()
		if command.claimResult(ctx) != nil {
			break
		}
		began := a.Clock.Now()
		answered = answered.Add(began.Sub(claims)) // in which the agent was not asked
		status, err := a.askEnd(ctx, pid, command)
		switch {
		case err == nil && status.Exited:
			return status, nil
		case err == nil:
			answered = a.Clock.Now()
		case errors.Is(err, failure.ErrBusy): // the agent was not asked
			answered = answered.Add(a.Clock.Since(began))
		case ctx.Err() == nil && (!errors.Is(err, failure.ErrSilent) || a.Clock.Since(answered) > maxSilence):
			return execStatus{}, endUnknown(err)
		}
	}
	return execStatus{}, fmt.Errorf("waiting for the command's end: %w", context.Cause(ctx))
}

// askEnd asks once whether a command has ended. It keeps the claim of a result if there is one.
func (a Agent) askEnd(ctx context.Context, pid int64, command Command) (status execStatus, err error) {
	err = a.withConversation(ctx, func(c *conversation) (err error) {
		status, err = c.commandStatus(pid)
		return err
	})
	if err != nil || !status.Exited {
		command.releaseResult()
	}
	return status, err
}

// endUnknown makes an error of a separate kind: the kind of the cause could mean that the
// command may be tried again.
func endUnknown(cause error) error { return fmt.Errorf("%w: %s", failure.ErrEndUnknown, cause.Error()) }

// waitFor waits, and reports whether ctx is still active.
func (a Agent) waitFor(ctx context.Context, d time.Duration) bool {
	timer := a.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
	return ctx.Err() == nil
}

// forgetCommand ends a command whose caller has left. The agent forgets a command once it was asked for
// its end; one that it did not forget could be taken for a later one of the same process ID.
func (a Agent) forgetCommand(ctx context.Context, pid int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	var killer int64
	err := a.withConversation(ctx, func(c *conversation) error {
		status, err := c.commandStatus(pid)
		if err != nil || status.Exited {
			return err
		}
		killer, err = c.startCommand(Command{Args: []string{"kill", strconv.FormatInt(pid, 10)}})
		return err
	})
	if err == nil && killer != 0 {
		_, _ = a.waitEnd(ctx, killer, Command{})
		_, _ = a.waitEnd(ctx, pid, Command{})
	}
}

// execStatus is how far a command has come.
type execStatus struct {
	Exited   bool   `json:"exited"`
	ExitCode *int64 `json:"exitcode"`
	Signal   *int64 `json:"signal"`
	Stdout   []byte `json:"out-data"` // in base64
	Stderr   []byte `json:"err-data"`
	// Truncated says that the agent has not kept all. Agents before version 10.1 never say so,
	// but keep more than this program does.
	OutTruncated bool `json:"out-truncated"`
	ErrTruncated bool `json:"err-truncated"`

	isCut bool
}

func (c *conversation) commandStatus(pid int64) (execStatus, error) {
	var s execStatus
	isCut, err := c.executeWithin(outputLimits, "guest-exec-status", map[string]int64{"pid": pid}, &s)
	s.isCut = isCut || s.OutTruncated || s.ErrTruncated
	return s, err
}

func (s execStatus) resultOf() (Result, error) {
	r := Result{Stdout: s.Stdout, Stderr: s.Stderr}
	const maxSignal, otherException = 127, 255 // Windows has exceptions in place of signals
	switch {
	case s.Signal != nil && *s.Signal > 0 && *s.Signal <= maxSignal:
		r.ExitCode = 128 + int(*s.Signal)
	case s.Signal != nil:
		r.ExitCode = otherException
	case s.ExitCode == nil || *s.ExitCode < math.MinInt32 || *s.ExitCode > math.MaxUint32:
		return Result{}, endUnknown(fmt.Errorf("%w: a command that has ended lacks an exit code", failure.ErrBadAnswer))
	default:
		r.ExitCode = int(*s.ExitCode)
	}
	if s.isCut {
		return r, fmt.Errorf("%w; the exit code is %d", failure.ErrOutputCut, r.ExitCode)
	}
	return r, nil
}
