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

// exec runs a command without input and returns its output.
func exec(ctx context.Context, d driver.Executor, uid types.UID, command []string) (stdout, stderr string, code int, err error) {
	var out, complaints bytes.Buffer
	code, err = d.Exec(ctx, uid, terminal.Command{Args: command, Stdout: &out, Stderr: &complaints})
	return out.String(), complaints.String(), code, err
}

func testExec(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Exit != nil, "Guest.Commands")
	spec, _ := e.Start(t, "exec")
	text := word()
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
		stdout, stderr, code, err := exec(t.Context(), d, spec.UID, c.command)
		assert.True(t, err == nil && strings.TrimSpace(stdout) == c.stdout && strings.TrimSpace(stderr) == c.stderr && code == c.code,
			"%s: %q ended with %d, %v, %q, %q, want %d, %q, %q", name, c.command, code, err, stdout, stderr, c.code, c.stdout, c.stderr)
	}
	testExecRefused(t, e, d, spec.UID)
}

// testExecRefused checks commands that cannot be started.
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
		stdout, stderr, _, err := exec(t.Context(), d, uid, c.command)
		assert.ErrorIs(t, fmt.Sprintf("Exec of %q", c.command), err, c.kind)
		assert.ErrorIs(t, fmt.Sprintf("Exec of %q", c.command), err, driver.ErrInvalid)
		assert.True(t, stdout == "" && stderr == "", "%q printed %q, %q", c.command, stdout, stderr)
	}
}

// testExecInput sends more than any buffer has room for.
func testExecInput(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, _ := e.Start(t, "exec-input")
	sent := bytes.Repeat([]byte(word()+"\x00\xff\r\n"), 100_000)
	var received bytes.Buffer
	code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: bytes.NewReader(sent), Stdout: &received})
	assert.True(t, err == nil && code == 0 && bytes.Equal(received.Bytes(), sent),
		"it ended with %d, %v, and copied %d bytes of %d", code, err, received.Len(), len(sent))
}

func testExecTerminal(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	spec, _ := e.Start(t, "exec-terminal")
	if e.Guest.Commands.Size == nil {
		assert.ErrorIs(t, "Exec with a terminal", assert.ErrorOf(d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Print("x"), Stdout: io.Discard, TTY: true})), driver.ErrUnsupported)
		return
	}
	in, typed := io.Pipe()
	shown, out := io.Pipe()
	sizes := make(chan terminal.Size)
	ended := make(chan error, 1)
	go func() {
		code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Size, Stdin: in, Stdout: out, TTY: true, Resize: sizes})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		ended <- errors.Join(err, in.Close(), out.Close())
	}()
	r := ReadAll(t, shown)
	for _, size := range []terminal.Size{{Width: 123, Height: 45}, {Width: 80, Height: 24}} {
		sizes <- size
		assert.Eventually(t, "the size of the terminal", func(testing.TB) error {
			if _, err := io.WriteString(typed, "\n"); err != nil {
				return err
			}
			if text, err := r.Now(); !strings.Contains(text, fmt.Sprintf("%d %d", size.Height, size.Width)) {
				return fmt.Errorf("it shows %q, %v", text, err) //nolint:errorlint // there may be none
			}
			return nil
		})
	}
	assert.NoError(t, typed.Close())
	assert.NoError(t, <-ended)
}

// testExecEnds checks that Exec ends with its context, and with a caller that takes no
// output.
func testExecEnds(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, s := e.Start(t, "exec-ends")
	ctx, cancel := context.WithCancel(t.Context())
	in, typed := io.Pipe()
	shown, copied := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := d.Exec(ctx, spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: in, Stdout: copied})
		ended <- err
	}()
	r, text := ReadAll(t, shown), word()
	assert.NoError(t, assert.ErrorOf(io.WriteString(typed, text)))
	r.WaitForText(t, text)
	cancel()
	assert.ErrorIs(t, "Exec", <-ended, context.Canceled)

	broken, out := io.Pipe()
	assert.NoError(t, broken.CloseWithError(os.ErrDeadlineExceeded))
	assert.ErrorIs(t, "Exec whose output is not taken", assert.ErrorOf(d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Print(word()), Stdout: out})), os.ErrDeadlineExceeded)
	e.checkRuns(t, s)
}

// testExecOfManyCallers checks that callers at the same time do not get each other's data.
func testExecOfManyCallers(t *testing.T, e *Env) {
	d := optional[driver.Executor](t, e.Driver)
	Require(t, e.Guest.Commands.Copy != nil, "Guest.Commands")
	spec, _ := e.Start(t, "many")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			sent, out := word(), &bytes.Buffer{}
			code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: e.Guest.Commands.Copy, Stdin: strings.NewReader(sent), Stdout: out})
			assert.True(t, err == nil && code == 0 && out.String() == sent, "caller %d sent %q and received %q, code %d: %v", i, sent, out, code, err)
		})
	}
	all.Wait()
}
