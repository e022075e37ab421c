// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"
)

// Kinds of Result.
const (
	// KindStarted means that the entrypoint runs.
	KindStarted = "started"
	// KindFailed means that the entrypoint was not started. Message says why.
	KindFailed = "failed"
	// KindExited means that the entrypoint has ended.
	KindExited = "exited"
)

// Codes of a run that did not start, as container engines have them.
const (
	// CodeFailed means that the machine could not be set up, such as for a user that the image does not have.
	CodeFailed = 128
	// CodeNotExecutable means that the entrypoint exists and cannot be executed.
	CodeNotExecutable = 126
	// CodeNotFound means that the entrypoint, or the interpreter that it names, is not in the image.
	CodeNotFound = 127
)

// Result is a line that the guest writes to the disk with ResultSerial.
type Result struct {
	Kind string `json:"kind"`
	// Code is the entrypoint's exit code, 0 to 255. If a signal ended it, Code is 128 plus Signal.
	Code   int `json:"code,omitempty"`
	Signal int `json:"signal,omitempty"`
	// OOMKilled is the name of the process whose kill by the guest's kernel, for lack of memory, has ended the
	// entrypoint; empty if there is none.
	OOMKilled string `json:"oomKilled,omitempty"`
	// Message is for people.
	Message string `json:"message,omitempty"`
}

// Claim is the checked and bounded report of a guest about its run. The host uses it only once QEMU's
// events show that the guest has shut down.
type Claim struct {
	// Started is set once the entrypoint has run.
	Started bool
	// Ended is set once the guest has reported an end. Failed is set if the run did not start.
	Ended, Failed bool
	// Code is 0 to 255. Signal is 0 if no signal ended the entrypoint.
	Code, Signal int
	// OOMKilled is the name of a process, as Result has it, and Message one line. Both are printable text.
	OOMKilled, Message string
}

const (
	// MaxMessage is how many bytes of a message are kept.
	MaxMessage = 1024
	// ResultBytes is the size of the disk with ResultSerial.
	ResultBytes = 64 << 10
	maxLine     = 8 << 10
	// maxProcessName is more than the 15 bytes of a process's name: TASK_COMM_LEN of Linux.
	maxProcessName = 64
	maxCode        = 255
)

// ReadClaim reads the disk with ResultSerial. It ignores lines that are not a valid Result, and
// everything after the first valid end.
func ReadClaim(r io.Reader) (Claim, error) {
	var c Claim
	lines := bufio.NewScanner(io.LimitReader(r, ResultBytes))
	lines.Buffer(make([]byte, 0, 512), maxLine)
	for !c.Ended && lines.Scan() {
		var result Result
		if json.Unmarshal(lines.Bytes(), &result) == nil {
			c.add(result)
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return c, err
	}
	return c, nil
}

func (c *Claim) add(r Result) {
	switch r.Kind {
	case KindStarted:
		c.Started = true
	case KindFailed, KindExited:
		if !r.isPossible(c.Started) {
			return
		}
		c.Ended, c.Failed = true, r.Kind == KindFailed
		c.Code, c.Signal, c.Message = r.Code, r.Signal, Printable(r.Message, MaxMessage)
		c.OOMKilled = Printable(r.OOMKilled, maxProcessName)
	}
}

// isPossible reports whether a run can end with r.
func (r Result) isPossible(started bool) bool {
	if r.Code < 0 || r.Code > maxCode || r.Signal < 0 || r.Signal > maxSignal {
		return false
	}
	if r.Kind == KindFailed {
		return !started && r.Signal == 0 && r.Code != 0
	}
	return started && (r.Signal == 0 || r.Code == 128+r.Signal)
}

// Printable returns at most maxBytes of a text from the guest as one line. It removes control
// characters, which could be commands to a terminal.
func Printable(text string, maxBytes int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, text[:min(len(text), 4*maxBytes)])
	text = strings.ToValidUTF8(text, "")
	return strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), maxBytes)], ""))
}
