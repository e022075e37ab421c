// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// readAhead is how much is read from a connection at once.
	readAhead = 64 << 10
	// maxConversation is how many bytes are read from a connection. It suffices for two answers with as
	// much output of a command as the agent keeps. One of them may be for an earlier client.
	maxConversation = 128 << 20
	// maxStale is how many answers to other clients are skipped.
	maxStale = 100
	// maxDescription is how many bytes of the agent's message an error quotes.
	maxDescription = 300
)

// sentinel is a byte that never occurs in JSON. An agent that receives it discards all earlier
// input. An agent sends it before an answer to guest-sync-delimited.
const sentinel = 0xff

// conversation is the exchange over one connection.
type conversation struct {
	in        *bufio.Reader
	out       io.Writer
	bytesRead int
	// silence is how long the agent may be silent.
	silence time.Duration
}

func newConversation(conn io.ReadWriter) *conversation {
	return &conversation{in: bufio.NewReaderSize(conn, readAhead), out: conn, silence: silenceLimit}
}

// ReadByte implements io.ByteReader.
func (c *conversation) ReadByte() (byte, error) {
	if c.bytesRead++; c.bytesRead > maxConversation {
		return 0, fmt.Errorf("%w: the agent has sent more than %d MiB", failure.ErrBadAnswer, maxConversation>>20)
	}
	b, err := c.in.ReadByte()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", failure.ErrSilent, err)
	}
	return b, nil
}

// UnreadByte implements io.ByteScanner.
func (c *conversation) UnreadByte() error { return c.in.UnreadByte() }

func (c *conversation) sendBytes(p []byte) error {
	if _, err := c.out.Write(p); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrSilent, err)
	}
	return nil
}

// request is a command. It lacks an ID, since old agents reject requests with one.
type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// answer is a line that the agent sends.
type answer struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

// synchronize skips answers to earlier clients, which the connection may deliver first, in whole or
// in part.
func (c *conversation) synchronize() error {
	var random [8]byte
	_, _ = rand.Read(random[:])                              // never fails
	id := int64(binary.LittleEndian.Uint64(random[:]) >> 12) // 52 bits: JSON libraries keep them exactly
	sync := marshalLine(request{"guest-sync-delimited", map[string]int64{"id": id}})
	if err := c.sendBytes(append([]byte{sentinel}, sync...)); err != nil {
		return err
	}
	for range maxStale {
		if err := c.skipToSentinel(); err != nil {
			return err
		}
		text, _, err := readObject(c, answerLimits)
		if err != nil && c.isFatal(err) {
			return err
		}
		var a answer
		var got int64
		if err == nil && json.Unmarshal(text, &a) == nil && json.Unmarshal(a.Return, &got) == nil && got == id {
			return nil
		}
	}
	return fmt.Errorf("%w: none of the agent's first %d answers is the answer to guest-sync-delimited", failure.ErrBadAnswer, maxStale)
}

// skipToSentinel reads up to the next sentinel.
func (c *conversation) skipToSentinel() error {
	for {
		if b, err := c.ReadByte(); err != nil || b == sentinel {
			return err
		}
	}
}

// isFatal reports whether nothing else can be read from the connection after err.
func (c *conversation) isFatal(err error) bool {
	return !errors.Is(err, failure.ErrBadAnswer) || c.bytesRead > maxConversation
}

// executeCommand sends a command to the agent, and decodes the answer into result.
func (c *conversation) executeCommand(command string, arguments, result any) error {
	isTruncated, err := c.executeWithLimits(answerLimits, command, arguments, result)
	if err == nil && isTruncated {
		err = fmt.Errorf("%w: the answer to %s is too long", failure.ErrBadAnswer, command)
	}
	return err
}

// executeWithLimits is executeCommand with other limits. isTruncated is set if a string in the answer
// was too long and was truncated.
func (c *conversation) executeWithLimits(bounds limits, command string, arguments, result any) (isTruncated bool, err error) {
	if err := c.sendBytes(marshalLine(request{command, arguments})); err != nil {
		return false, err
	}
	text, isTruncated, err := readObject(c, bounds)
	if err != nil {
		return isTruncated, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return isTruncated, decodeError(command, err)
	}
	if a.Error != nil {
		return isTruncated, refusalError(command, a.Error.Class, a.Error.Desc)
	}
	if err := json.Unmarshal(a.Return, result); err != nil {
		return isTruncated, decodeError(command, err)
	}
	return isTruncated, nil
}

func decodeError(command string, err error) error {
	return fmt.Errorf("%w: the answer to %s: %s", failure.ErrBadAnswer, command, printableText(err.Error(), maxDescription))
}

// refusalError returns the error for an answer that refuses a command.
func refusalError(command, class, desc string) error {
	if class == "CommandNotFound" {
		return disabledError(command)
	}
	return fmt.Errorf("%w %s: %s", failure.ErrAgentRefused, command, printableText(desc, maxDescription))
}

func disabledError(command string) error {
	return fmt.Errorf("%w, %s: an administrator of the guest can allow it in the agent's configuration, such as /etc/qemu/qemu-ga.conf or /etc/sysconfig/qemu-ga", failure.ErrDisabled, command)
}

// requireCommands fails with failure.ErrDisabled unless the agent supports all commands.
func (c *conversation) requireCommands(commands ...string) error {
	var info struct {
		Commands []struct {
			Name    string `json:"name"`
			Enabled bool   `json:"enabled"`
		} `json:"supported_commands"`
	}
	if err := c.executeCommand("guest-info", nil, &info); err != nil {
		return err
	}
	var enabled []string
	for _, supported := range info.Commands {
		if supported.Enabled {
			enabled = append(enabled, supported.Name)
		}
	}
	for _, command := range commands {
		if !slices.Contains(enabled, command) {
			return disabledError(command)
		}
	}
	return nil
}

func marshalLine(r request) []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, numbers and byte slices can always be marshaled
	}
	return append(line, '\n')
}
