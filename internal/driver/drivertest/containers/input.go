// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// openConsole opens a console, whose output is not read, until the end of the test.
func (e *env) openConsole(t *testing.T, spec driver.ServerSpec) io.ReadWriteCloser {
	t.Helper()
	consoler, ok := driver.As[driver.Consoler](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.Consoler")
	c, err := consoler.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// testInput checks that a command gets the input of one console after another whole, from its start on, and its end.
func (e *env) testInput(t *testing.T) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Stdin, s.Args = true, []string{"sha256sum"}
	})
	e.startRun(t, spec, "")
	input := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	first, second := e.openConsole(t, spec), e.openConsole(t, spec)
	assert.NoError(t, assert.ErrorOf(first.Write(input[:1000])))
	assert.ErrorIs(t, "Write beside another writer", assert.ErrorOf(second.Write(input)), driver.ErrConsoleTaken)
	assert.NoError(t, first.Close())
	assert.Eventually(t, "another console writes", func(testing.TB) error {
		n, err := second.Write(input[1000:])
		assert.Require(t, err == nil || n == 0, "it has written %d bytes: %v", n, err)
		return err
	})
	assert.NoError(t, endInput(t, second))
	e.wantExit(t, spec, 0, "")
	e.wantPrinted(t, spec, fmt.Sprintf("%x  -\n", sha256.Sum256(input)), "")
}

// endInput ends the input of a console's command.
func endInput(t *testing.T, c io.ReadWriteCloser) error {
	t.Helper()
	input, ok := c.(driver.InputConsole)
	assert.Require(t, ok, "the console is a %T, which does not implement driver.InputConsole", c)
	return input.CloseWrite()
}

// terminalScript says where it runs, and prints the size of its terminal after each line, until Ctrl-C.
const terminalScript = `
trap 'echo interrupted; exit 5' INT
test -t 0 && test -t 1 && test -t 2 && echo "$TERM up"
while read -r line; do echo "$line $(busybox stty size)"; done
echo ended
`

// testTerminal checks the terminal of a command: its size, Ctrl-C, and that it stays open for the next console.
func (e *env) testTerminal(t *testing.T, init driver.Init) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Stdin, s.TTY, s.Init, s.Args = true, true, init, []string{terminalScript}
	})
	e.startRun(t, spec, "")
	e.waitForOutput(t, spec, "xterm up\r\n")
	first := e.openConsole(t, spec)
	first.(driver.InputConsole).Resize(terminal.Size{Width: 90, Height: 7})
	assert.Eventually(t, "the terminal has its size", func(t testing.TB) error {
		assert.NoError(t, assert.ErrorOf(io.WriteString(first, "typed\r")))
		stdout, _ := e.readLog(t, spec)
		assert.Contains(t, "the output", stdout, "typed\r\ntyped 7 90\r\n")
		return nil
	})
	assert.NoError(t, first.Close())
	second := e.openConsole(t, spec)
	assert.Eventually(t, "another console interrupts", func(testing.TB) error { return assert.ErrorOf(io.WriteString(second, "\x03")) })
	e.wantExit(t, spec, 5, "")
	stdout, stderr := e.readLog(t, spec)
	assert.Contains(t, "the output", stdout, "interrupted\r\n")
	assert.Equal(t, "standard error", stderr, "")
}

// testNoInput checks that a command without an input reads /dev/null, or nothing from a terminal, and that its console
// refuses input.
func (e *env) testNoInput(t *testing.T, hasTerminal bool) {
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.TTY, s.Args = hasTerminal, []string{"readlink /proc/self/fd/0; echo up; exec sleep 1000000"}
	})
	e.startRun(t, spec, "")
	e.waitForOutput(t, spec, "up")
	stdout, _ := e.readLog(t, spec)
	assert.True(t, hasTerminal || stdout == "/dev/null\nup\n", "it prints %q", stdout)
	c := e.openConsole(t, spec)
	err := assert.ErrorOf(io.WriteString(c, "typed\n"))
	assert.True(t, errors.Is(err, driver.ErrUnsupported), "Write returns %v", err)
	assert.Contains(t, "the error", fmt.Sprint(err), "set spec.stdin and restart the VM")
	if !hasTerminal {
		assert.NoError(t, endInput(t, c))
	}
}
