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
	// Code is how the entrypoint ended, 0 to 255. It is 128 and the number of Signal where a
	// signal ended it.
	Code   int `json:"code,omitempty"`
	Signal int `json:"signal,omitempty"`
	// Message is for people.
	Message string `json:"message,omitempty"`
}

// Claim is the guest's report of its run, checked and bounded. It counts only once the events of QEMU
// say that the guest has shut down.
type Claim struct {
	// Started is set once the entrypoint has run.
	Started bool
	// Ended is set once the guest has named an end, and Failed if the run did not start.
	Ended, Failed bool
	// Code is 0 to 255; Signal is 0 where none ended the entrypoint.
	Code, Signal int
	// Message is one line of printable text.
	Message string
}

const (
	// MaxMessage is how many bytes of a message are kept.
	MaxMessage = 1024
	// ResultBytes is the size of the disk.
	ResultBytes = 64 << 10
	maxLine     = 8 << 10
	maxCode     = 255
)

// ReadClaim reads the disk of the results. It ignores lines that are not a valid Result,
// and everything after the first valid end.
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
	}
}

// isPossible reports whether a run can end so.
func (r Result) isPossible(started bool) bool {
	if r.Code < 0 || r.Code > maxCode || r.Signal < 0 || r.Signal > maxSignal {
		return false
	}
	if r.Kind == KindFailed {
		return !started && r.Signal == 0 && r.Code != 0
	}
	return started && (r.Signal == 0 || r.Code == 128+r.Signal)
}

// Printable returns the beginning of a text of the guest as one line without control characters,
// which could be commands to a terminal.
func Printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r) || r == unicode.ReplacementChar:
			return -1
		}
		return r
	}, text[:min(len(text), 4*most)])
	text = strings.ToValidUTF8(text, "")
	return strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), most)], ""))
}
