// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// TestSynchronize checks that what other clients have left is skipped, whatever it is.
func TestSynchronize(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"nothing":             "",
		"an answer":           `{"return": 12}` + "\n",
		"half an answer":      `{"return": "abc`,
		"another one's":       "\xff{\"return\": 12}\n",
		"half of that":        "\xff{\"return\": 1",
		"in a text":           "\xff{\"return\": \"a",
		"several":             "\xff\xff{}\xff{\"return\": 3}\xff[]\xff{\"return\":{}}",
		"an error":            "\xff{\"error\":{\"class\":\"GenericError\",\"desc\":\"x\"}}\n",
		"much":                strings.Repeat("x", 1<<20),
		"much of one answer":  "\xff{\"return\": \"" + strings.Repeat("x", 1<<20),
		"deep":                "\xff" + strings.Repeat(`{"a":`, 100),
		"another one's words": "\xffgarbage",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := &guest{before: before, answer: func(string, map[string]any) string { return `{"return":[]}` }}
				assert.ReportError(t, assert.ErrorOf(g.agent().Interfaces(t.Context())))
				g.checkClosed(t)
			})
		})
	}
}

// TestEndlessSynchronization checks that a guest that never stops is not read for ever.
func TestEndlessSynchronization(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, says string }{
		"garbage":   {"x", "the agent has sent more than 128 MiB"},
		"sentinels": {"\xff", "none of the agent's first 100 answers is the answer to guest-sync-delimited"},
		"answers":   {"\xff{\"return\":1}", "none of the agent's first 100 answers is the answer to guest-sync-delimited"},
	} {
		talk := newConversation(struct {
			io.Reader
			io.Writer
		}{&endless{text: c.text}, io.Discard})
		talk.bytesRead = maxConversation - 1<<20
		assert.ErrorIs(t, name, talk.synchronize(), failure.ErrBadAnswer, c.says)
	}
}

// endless repeats a text.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.text[e.at]
		e.at = (e.at + 1) % len(e.text)
	}
	return len(p), nil
}

// TestReadObject checks where an object ends, which texts are cut, and which bytes are refused.
func TestReadObject(t *testing.T) {
	t.Parallel()
	most := limits{read: 1000, text: 8, kept: 100}
	for name, c := range map[string]struct {
		sent, want  string
		isTruncated bool
		err         error
	}{
		"whole":             {` {"a": [1, {"b": "}"}]}` + "\nrest", `{"a": [1, {"b": "}"}]}`, false, nil},
		"quote in a text":   {`{"a":"\"}{"}rest`, `{"a":"\"}{"}`, false, nil},
		"escaped backslash": {`{"a":"\\"}rest`, `{"a":"\\"}`, false, nil},
		"long text":         {`{"a":"123456789","b":"12345678"}`, `{"a":"12345678","b":"12345678"}`, true, nil},
		"lines":             {"{\n\"a\"\r\n:\t1}", "{\n\"a\"\r\n:\t1}", false, nil},
		"no object":         {`[1]`, "", false, errNoObject},
		"a word":            {`null`, "", false, errNoObject},
		"deep":              {strings.Repeat(`{"a":`, 17), "", false, errTooDeep},
		"many":              {`{"a":[` + strings.Repeat("1,", 100), "", false, errTooLong},
		"endless text":      {`{"a":"` + strings.Repeat("x", 2000), "", true, errTooLong},
		"interrupted":       {"{\"a\":\xff", "", false, errInterrupted},
		"ends":              {`{"a"`, "", false, io.EOF},
	} {
		in := bufio.NewReader(strings.NewReader(c.sent))
		got, isTruncated, err := readObject(in, most)
		assert.True(t, string(got) == c.want && isTruncated == c.isTruncated && errors.Is(err, c.err), "%s: got %q, %t, %v", name, got, isTruncated, err)
	}
}

// FuzzAnswers checks that no answer makes the client keep more than it may, or return what no
// guest has.
func FuzzAnswers(f *testing.F) {
	for _, text := range []string{
		`{"return":{"exited":true,"exitcode":0,"out-data":"YQ==","err-data":""}}`,
		`{"return":[{"name":"eth0","hardware-address":"52:54:00:00:00:01","ip-addresses":[{"ip-address":"10.0.2.15","prefix":24}]}]}`,
		`{"error":{"class":"CommandNotFound","desc":"\u001b[2J"}}`,
		`{"return":{"supported_commands":[{"name":"guest-exec","enabled":true}]}}`,
		`{"return":{"pid":1}}`, "\xff{\"return\": 1}", `{"return":"\ud800"}`, strings.Repeat("[", 100), `{"return":1e999}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		for _, talk := range []func(*conversation) error{
			(*conversation).synchronize, requireExec, checkStart, checkStatus, checkInterfaces,
		} {
			c := newConversation(struct {
				io.Reader
				io.Writer
			}{bytes.NewReader(sent), io.Discard})
			err := talk(c)
			if lie := new(lieError); errors.As(err, &lie) {
				t.Error(err)
			}
			assert.True(t, err == nil || printableText(err.Error(), math.MaxInt) == strings.ReplaceAll(err.Error(), "\ufffd", ""), "the error is %q", err)
		}
		checkShortened(t, sent)
	})
}

// lieError is a result that should have been refused.
type lieError struct{ result any }

func (e *lieError) Error() string { return fmt.Sprintf("the client returns %#v", e.result) }

func checkStart(c *conversation) error {
	pid, err := c.startCommand(Command{Args: []string{"x"}})
	if err == nil && pid <= 0 {
		return &lieError{pid}
	}
	return err
}

func checkStatus(c *conversation) error {
	status, err := c.commandStatus(1)
	if err != nil {
		return err
	}
	r, err := status.toResult()
	if err == nil && (r.ExitCode < math.MinInt32 || r.ExitCode > math.MaxUint32) {
		return &lieError{r}
	}
	return err
}

func checkInterfaces(c *conversation) error {
	var reported []reportedInterface
	if err := c.executeCommand("x", nil, &reported); err != nil {
		return err
	}
	for _, r := range reported {
		i, err := r.toInterface()
		if err != nil {
			return err
		}
		if i.Name != printableText(i.Name, report.MaxName) || i.Name == "" {
			return &lieError{i}
		}
		for _, a := range i.Addresses {
			if !a.IsValid() || a.Addr().Zone() != "" {
				return &lieError{i}
			}
		}
	}
	return nil
}

// checkShortened checks that valid JSON stays what it is unless it is cut, and that limits hold.
func checkShortened(t *testing.T, sent []byte) {
	t.Helper()
	most := limits{read: 1 << 20, text: 16, kept: 256}
	kept, isTruncated, err := readObject(bufio.NewReader(bytes.NewReader(sent)), most)
	if err != nil {
		return
	}
	assert.True(t, len(kept) <= most.kept, "it keeps %d bytes", len(kept))
	var first, shortened json.RawMessage
	if json.NewDecoder(bytes.NewReader(sent)).Decode(&first) != nil || isTruncated {
		return
	}
	err = json.Unmarshal(kept, &shortened)
	assert.True(t, err == nil && bytes.Equal(bytes.TrimSpace(first), kept), "%q becomes %q: %v", first, kept, err)
}
