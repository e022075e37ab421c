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

	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// readAhead is how much is read from a connection at once.
	readAhead = 64 << 10
	// maxConversation is how many bytes are read from a connection, what other clients have not
	// waited for included: two answers with all the output that the agent keeps.
	maxConversation = 128 << 20
	// maxStale is how many answers to other clients are skipped.
	maxStale = 100
	// maxDescription is how much of the agent's description an error has.
	maxDescription = 300
)

// sentinel is a byte that no JSON has. An agent that reads it forgets what it has read before,
// and one that sends it is about to send a whole answer.
const sentinel = 0xff

// conversation is the exchange over one connection.
type conversation struct {
	in   *bufio.Reader
	out  io.Writer
	read int // bytes
}

func newConversation(conn io.ReadWriter) *conversation {
	return &conversation{in: bufio.NewReaderSize(conn, readAhead), out: conn}
}

// ReadByte implements io.ByteReader.
func (c *conversation) ReadByte() (byte, error) {
	if c.read++; c.read > maxConversation {
		return 0, fmt.Errorf("%w: it sends more than %d MiB", failure.ErrBadAnswer, maxConversation>>20)
	}
	b, err := c.in.ReadByte()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", failure.ErrSilent, err)
	}
	return b, nil
}

// UnreadByte implements io.ByteScanner.
func (c *conversation) UnreadByte() error { return c.in.UnreadByte() }

// writeLine sends a line, or what else the agent reads.
func (c *conversation) writeLine(line []byte) error {
	if _, err := c.out.Write(line); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrSilent, err)
	}
	return nil
}

// request is a command. It lacks an ID, which old agents refuse.
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

// synchronize finds the beginning of the agent's answers to this client. What another client
// has left comes before: half an answer, or a late one.
func (c *conversation) synchronize() error {
	var random [8]byte
	_, _ = rand.Read(random[:])                              // never fails
	id := int64(binary.LittleEndian.Uint64(random[:]) >> 12) // which every JSON library keeps exactly
	sync := marshalLine(request{"guest-sync-delimited", map[string]int64{"id": id}})
	if err := c.writeLine(append([]byte{sentinel}, sync...)); err != nil {
		return err
	}
	for range maxStale {
		if err := c.skipToSentinel(); err != nil {
			return err
		}
		text, _, err := readObject(c, answerLimits)
		if err != nil && c.cannotGoOn(err) {
			return err
		}
		var a answer
		var got int64
		if err == nil && json.Unmarshal(text, &a) == nil && json.Unmarshal(a.Return, &got) == nil && got == id {
			return nil
		}
	}
	return fmt.Errorf("%w: it sends other things than it is asked for", failure.ErrBadAnswer)
}

// skipToSentinel reads up to the next sentinel.
func (c *conversation) skipToSentinel() error {
	for {
		if b, err := c.ReadByte(); err != nil || b == sentinel {
			return err
		}
	}
}

// cannotGoOn reports whether nothing else can be read after an error.
func (c *conversation) cannotGoOn(err error) bool {
	return !errors.Is(err, failure.ErrBadAnswer) || c.read > maxConversation
}

// executeCommand has the agent execute a command, and decodes its answer.
func (c *conversation) executeCommand(command string, arguments, result any) error {
	isCut, err := c.executeWithin(answerLimits, command, arguments, result)
	if err == nil && isCut {
		err = fmt.Errorf("%w: the one to %s is too long", failure.ErrBadAnswer, command)
	}
	return err
}

// executeWithin is execute with limits of the answer. It reports whether a text in the answer
// was longer than they allow, and was cut.
func (c *conversation) executeWithin(most limits, command string, arguments, result any) (isCut bool, err error) {
	if err := c.writeLine(marshalLine(request{command, arguments})); err != nil {
		return false, err
	}
	text, isCut, err := readObject(c, most)
	if err != nil {
		return isCut, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return isCut, fmt.Errorf("%w: the one to %s: %s", failure.ErrBadAnswer, command, printableText(err.Error(), maxDescription))
	}
	if a.Error != nil {
		return isCut, refusalError(command, a.Error.Class, a.Error.Desc)
	}
	if err := json.Unmarshal(a.Return, result); err != nil {
		return isCut, fmt.Errorf("%w: the one to %s: %s", failure.ErrBadAnswer, command, printableText(err.Error(), maxDescription))
	}
	return isCut, nil
}

// refusalError returns the error for a refusal of the agent.
func refusalError(command, class, desc string) error {
	if class == "CommandNotFound" {
		return disabledError(command)
	}
	return fmt.Errorf("%w %s: %s", failure.ErrAgentRefused, command, printableText(desc, maxDescription))
}

func disabledError(command string) error {
	return fmt.Errorf("%w, %s: an administrator of the guest allows it in the agent's configuration, such as /etc/qemu/qemu-ga.conf or /etc/sysconfig/qemu-ga", failure.ErrDisabled, command)
}

// requireCommands fails with failure.ErrDisabled unless the agent offers commands.
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
	for _, offered := range info.Commands {
		if offered.Enabled {
			enabled = append(enabled, offered.Name)
		}
	}
	for _, command := range commands {
		if !slices.Contains(enabled, command) {
			return disabledError(command)
		}
	}
	return nil
}

// marshalLine returns a line of JSON.
func marshalLine(r request) []byte {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts, numbers and bytes can always be marshaled
	}
	return append(line, '\n')
}
