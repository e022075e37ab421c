// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// runCommand runs a command without input and returns its output and exit code.
func runCommand(ctx context.Context, d driver.Executor, uid types.UID, command []string) (stdout, stderr string, code int, err error) {
	var outBuffer, errBuffer bytes.Buffer
	code, err = d.Exec(ctx, uid, terminal.Command{Args: command, Stdout: &outBuffer, Stderr: &errBuffer})
	return outBuffer.String(), errBuffer.String(), code, err
}

func testExec(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Exit != nil, "Guest.Commands")
	spec, _ := e.Start(t, "exec")
	text := newWord()
	for name, c := range map[string]struct {
		command              []string
		stdout, stderr, code any
	}{
		"output":         {e.Guest.Commands.Print(text), text, "", 0},
		"errors":         {e.Guest.Commands.Complain(text), "", text, 0},
		"code":           {e.Guest.Commands.Exit(3), "", "", 3},
		"killed":         {e.Guest.Commands.Killed, "", "", 137},
		"no input":       {e.Guest.Commands.Copy, "", "", 0},
		"strange output": {e.Guest.Commands.Print("%s\x1b[2J$HOME`ls`"), "%s\x1b[2J$HOME`ls`", "", 0},
	} {
		stdout, stderr, code, err := runCommand(t.Context(), d, spec.UID, c.command)
		assert.True(t, err == nil && strings.TrimSpace(stdout) == c.stdout && strings.TrimSpace(stderr) == c.stderr && code == c.code,
			"%s: %q got the code %d, error %v, stdout %q and stderr %q, want %d, nil, %q and %q", name, c.command, code, err, stdout, stderr, c.code, c.stdout, c.stderr)
	}
	testExecRefused(t, e, d, spec.UID)
}

// testExecRefused checks the errors for commands that cannot be started.
func testExecRefused(t *testing.T, e *Env, d driver.Executor, uid types.UID) {
	type refused struct {
		command []string
		kind    error
	}
	all := []refused{{nil, driver.ErrInvalid}, {[]string{""}, driver.ErrInvalid}, {[]string{"no-such-program"}, driver.ErrCommandNotFound}}
	if command := e.Guest.Commands.NotExecutable; command != nil {
		all = append(all, refused{command, driver.ErrCommandNotExecutable})
	}
	for _, c := range all {
		stdout, stderr, _, err := runCommand(t.Context(), d, uid, c.command)
		assert.ErrorIs(t, fmt.Sprintf("Exec of %q", c.command), err, c.kind)
		assert.ErrorIs(t, fmt.Sprintf("Exec of %q", c.command), err, driver.ErrInvalid)
		assert.True(t, stdout == "" && stderr == "", "%q printed %q, %q", c.command, stdout, stderr)
	}
}

// testExecInput sends more input than fits into the buffers on the way to the command.
func testExecInput(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, _ := e.Start(t, "exec-input")
	sent := bytes.Repeat([]byte(newWord()+"\x00\xff\r\n"), 100_000)
	var received bytes.Buffer
	code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: bytes.NewReader(sent), Stdout: &received})
	assert.True(t, err == nil && code == 0 && bytes.Equal(received.Bytes(), sent),
		"the command exited with %d, %v, and copied %d bytes of %d", code, err, received.Len(), len(sent))
}

func testExecTerminal(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	spec, _ := e.Start(t, "exec-terminal")
	if e.Guest.Commands.Size == nil {
		assert.ErrorIs(t, "Exec with a terminal", assert.ErrorOf(d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Print("x"), Stdout: io.Discard, TTY: true})), driver.ErrUnsupported)
		return
	}
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	sizes := make(chan terminal.Size)
	result := make(chan error, 1)
	go func() {
		code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Size, Stdin: stdin, Stdout: stdout, TTY: true, Resize: sizes})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		result <- errors.Join(err, stdin.Close(), stdout.Close())
	}()
	reading := ReadAll(t, output)
	for _, size := range []terminal.Size{{Width: 123, Height: 45}, {Width: 80, Height: 24}} {
		sizes <- size
		assert.Eventually(t, "the size of the terminal", func(testing.TB) error {
			if _, err := io.WriteString(input, "\n"); err != nil {
				return err
			}
			if text, err := reading.Now(); !strings.Contains(text, fmt.Sprintf("%d %d", size.Height, size.Width)) {
				return fmt.Errorf("the terminal shows %q, %v", text, err) //nolint:errorlint // err may be nil
			}
			return nil
		})
	}
	assert.NoError(t, input.Close())
	assert.NoError(t, <-result)
}

// testExecEnds checks that Exec returns when its context ends, and when a Write to Stdout
// fails.
func testExecEnds(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, s := e.Start(t, "exec-ends")
	ctx, cancel := context.WithCancel(t.Context())
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	result := make(chan error, 1)
	go func() {
		_, err := d.Exec(ctx, spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: stdin, Stdout: stdout})
		result <- err
	}()
	reading, text := ReadAll(t, output), newWord()
	assert.NoError(t, assert.ErrorOf(io.WriteString(input, text)))
	reading.WaitForText(t, text)
	cancel()
	assert.ErrorIs(t, "Exec whose context ends", <-result, context.Canceled)

	brokenOutput, brokenStdout := io.Pipe()
	assert.NoError(t, brokenOutput.CloseWithError(os.ErrDeadlineExceeded))
	assert.ErrorIs(t, "Exec whose Stdout fails", assert.ErrorOf(d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Print(newWord()), Stdout: brokenStdout})), os.ErrDeadlineExceeded)
	e.checkRuns(t, s)
}

// testExecOfManyCallers checks that concurrent callers do not get each other's data.
func testExecOfManyCallers(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, _ := e.Start(t, "many")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			sent, out := newWord(), &bytes.Buffer{}
			code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: strings.NewReader(sent), Stdout: out})
			assert.True(t, err == nil && code == 0 && out.String() == sent, "caller %d sent %q and received %q, code %d: %v", i, sent, out, code, err)
		})
	}
	all.Wait()
}
