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
	// maxArguments is how many bytes a command may have, like one argument in Linux.
	maxArguments = 128 << 10
	// quickPoll is the time between the start of a command and the first poll, which uses the
	// same connection. Most commands have ended by then.
	quickPoll = 20 * time.Millisecond
	// minPoll and maxPoll bound the interval between the next polls.
	minPoll, maxPoll = 50 * time.Millisecond, time.Second
	// maxSilence is how long an agent may leave a start or polls without an answer. It is longer
	// than silenceLimit, since neither can be repeated: the agent forgets a command whose end it
	// begins to report. Time in which the agent is busy with other clients, each for up to
	// conversationLimit, is not counted.
	maxSilence = 30 * time.Second
	// killTimeout bounds the attempt to end a command whose caller has left.
	killTimeout = 10 * time.Second
)

// Error texts of Linux in the agent's refusal to start a command.
var (
	saysNotFound      = regexp.MustCompile(`(?i)executable file not found|no such file or directory`)
	saysNotExecutable = regexp.MustCompile(`(?i)permission denied|is a directory|not a directory|exec format error|invalid argument|argument list too long|file name too long`)
)

// classifyRefusal adds the kind of failure to the agent's refusal to start a command.
func classifyRefusal(refusal error) error {
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
	// Results, if not nil, bounds the results in memory. Exec acquires 1 before each poll, since
	// the answer may have the output. The caller releases it once it is done with the result.
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

// Exec runs a command in the guest, waits for its end, and returns its output. If ctx ends first,
// Exec kills the command, unless the guest lacks the program kill. Exec returns a result also with
// failure.ErrOutputCut.
func (a Agent) Exec(ctx context.Context, command Command) (Result, error) {
	if err := command.Check(); err != nil {
		return Result{}, err
	}
	pid, status, err := a.startAndPoll(ctx, command)
	if err != nil {
		return Result{}, err
	}
	if !status.Exited {
		if status, err = a.waitEnd(ctx, pid, command); err != nil {
			if ctx.Err() != nil {
				a.killCommand(ctx, pid)
			}
			return Result{}, err
		}
	}
	result, err := status.toResult()
	if err != nil && !errors.Is(err, failure.ErrOutputCut) {
		command.releaseResult()
	}
	return result, err
}

// startAndPoll starts a command, and polls its status once. It ignores a failure of that poll, since waitEnd
// polls again.
func (a Agent) startAndPoll(ctx context.Context, command Command) (pid int64, status execStatus, err error) {
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
		err = unknownEndError(err)
	}
	return pid, status, err
}

// Check rejects a command that no guest can start.
func (c Command) Check() error {
	size := 0
	for i, arg := range c.Args {
		size += len(arg)
		if !utf8.ValidString(arg) || strings.ContainsRune(arg, 0) {
			return fmt.Errorf("%w: command[%d] is %.80q, which must be UTF-8 without zero bytes", failure.ErrCommand, i, arg)
		}
	}
	switch {
	case len(c.Args) == 0 || c.Args[0] == "":
		return fmt.Errorf("%w: it is empty: name a program", failure.ErrCommand)
	case size > maxArguments:
		return fmt.Errorf("%w: it has %d bytes, and at most %d are possible", failure.ErrCommand, size, maxArguments)
	case len(c.Stdin) > failure.MaxInput:
		return fmt.Errorf("%w: its input has more than %d MiB, the limit of the guest agent: use ssh for more", failure.ErrCommand, failure.MaxInput>>20)
	}
	return nil
}

// startCommand starts a command, and returns its process ID in the guest.
func (c *conversation) startCommand(command Command) (pid int64, err error) {
	c.silence = maxSilence
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
		return 0, classifyRefusal(err)
	case err != nil:
		return 0, err
	case started.PID == nil || *started.PID <= 0:
		return 0, fmt.Errorf("%w: the answer to guest-exec lacks a process ID", failure.ErrBadAnswer)
	}
	return *started.PID, nil
}

// waitEnd polls a command's status until the command has ended. Polls may fail for up to maxSilence, as
// in a busy guest. Time in which the agent is not polled does not count: it moves silentSince forward.
func (a Agent) waitEnd(ctx context.Context, pid int64, command Command) (execStatus, error) {
	silentSince := a.Clock.Now()
	for wait := minPoll; a.waitFor(ctx, wait); wait = min(2*wait, maxPoll) {
		claimsSince := a.Clock.Now()
		if command.claimResult(ctx) != nil {
			break
		}
		pollsSince := a.Clock.Now()
		silentSince = silentSince.Add(pollsSince.Sub(claimsSince))
		status, err := a.pollStatus(ctx, pid, command)
		switch {
		case err == nil && status.Exited:
			return status, nil
		case err == nil:
			silentSince = a.Clock.Now()
		case errors.Is(err, failure.ErrBusy):
			silentSince = silentSince.Add(a.Clock.Since(pollsSince))
		case ctx.Err() == nil && (!errors.Is(err, failure.ErrSilent) || a.Clock.Since(silentSince) > maxSilence):
			return execStatus{}, unknownEndError(err)
		}
	}
	return execStatus{}, fmt.Errorf("waiting for the command's end: %w", context.Cause(ctx))
}

// pollStatus asks once whether a command has ended. If so, the claim of a result remains.
func (a Agent) pollStatus(ctx context.Context, pid int64, command Command) (status execStatus, err error) {
	err = a.withConversation(ctx, func(c *conversation) (err error) {
		status, err = c.commandStatus(pid)
		return err
	})
	if err != nil || !status.Exited {
		command.releaseResult()
	}
	return status, err
}

// unknownEndError does not wrap cause: the kind of cause could mean that the command may be tried
// again.
func unknownEndError(cause error) error {
	return fmt.Errorf("%w: %s", failure.ErrEndUnknown, cause.Error())
}

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

// killCommand kills a command whose caller has left. It also waits for the ends of both commands, since the agent
// keeps a process ID until it has reported the end. The kernel could give the same ID to a later command.
func (a Agent) killCommand(ctx context.Context, pid int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
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

// execStatus is the agent's answer to guest-exec-status.
type execStatus struct {
	Exited   bool   `json:"exited"`
	ExitCode *int64 `json:"exitcode"`
	Signal   *int64 `json:"signal"`
	Stdout   []byte `json:"out-data"` // in base64
	Stderr   []byte `json:"err-data"`
	// OutTruncated and ErrTruncated mean that the agent has dropped output. Agents before version
	// 10.1 never set them, but keep more output than this program does.
	OutTruncated bool `json:"out-truncated"`
	ErrTruncated bool `json:"err-truncated"`

	isTruncated bool
}

func (c *conversation) commandStatus(pid int64) (execStatus, error) {
	c.silence = maxSilence
	var s execStatus
	isTruncated, err := c.executeWithLimits(outputLimits, "guest-exec-status", map[string]int64{"pid": pid}, &s)
	s.isTruncated = isTruncated || s.OutTruncated || s.ErrTruncated
	return s, err
}

func (s execStatus) toResult() (Result, error) {
	r := Result{Stdout: s.Stdout, Stderr: s.Stderr}
	const maxSignal, exceptionCode = 127, 255 // Windows reports exceptions, larger numbers, as signals
	switch {
	case s.Signal != nil && *s.Signal > 0 && *s.Signal <= maxSignal:
		r.ExitCode = 128 + int(*s.Signal)
	case s.Signal != nil:
		r.ExitCode = exceptionCode
	case s.ExitCode == nil || *s.ExitCode < math.MinInt32 || *s.ExitCode > math.MaxUint32:
		return Result{}, unknownEndError(fmt.Errorf("%w: the exit code of the command is missing or too large", failure.ErrBadAnswer))
	default:
		r.ExitCode = int(*s.ExitCode)
	}
	if s.isTruncated {
		return r, fmt.Errorf("%w; the exit code is %d", failure.ErrOutputCut, r.ExitCode)
	}
	return r, nil
}
