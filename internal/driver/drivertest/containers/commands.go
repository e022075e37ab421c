// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// showSettings prints the settings of a command, and reads its input to the end.
const showSettings = `echo "$(id -u):$(id -g) $PWD $A $B"; if test -p /dev/stdin; then echo "input $(cat)"; else readlink /proc/self/fd/0; fi; exit 7`

// testCommands checks the settings of commands in a server of an image that runs as root with A=image and B=image.
func (e *env) testCommands(t *testing.T, s driver.Server) {
	executor, ok := driver.As[driver.Executor](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.Executor")
	for name, c := range map[string]struct {
		command terminal.Command
		prints  string
	}{
		"of the image": {terminal.Command{}, "0:0 / image image\n/dev/null\n"},
		"of the caller": {
			terminal.Command{User: "ann:staff", Env: []string{"B=own", "C="}, WorkingDir: "/www", Stdin: strings.NewReader("text")},
			"1000:50 /www image own\ninput text\n",
		},
		"by ID": {terminal.Command{User: "1234:5"}, "1234:5 / image image\n/dev/null\n"},
	} {
		var out, errs bytes.Buffer
		c.command.Args, c.command.Stdout, c.command.Stderr = []string{"sh", "-c", showSettings}, &out, &errs
		code, err := executor.Exec(t.Context(), s.UID, c.command)
		assert.NoError(t, err)
		assert.True(t, code == 7 && out.String() == c.prints && errs.Len() == 0, "%s: code %d, %q, errors %q; want 7, %q", name, code, out.String(), errs.String(), c.prints)
	}
	for missing, c := range map[string]terminal.Command{"nosuch": {User: "nosuch"}, "/no/such": {WorkingDir: "/no/such"}} {
		var output bytes.Buffer
		c.Args, c.Stdout, c.Stderr = []string{"true"}, &output, &output
		code, err := executor.Exec(t.Context(), s.UID, c)
		assert.True(t, code != 0 || err != nil, "a command with %s, which the image lacks, has succeeded", missing)
		assert.Contains(t, "the caller's output and error", fmt.Sprint(output.String(), err), missing)
	}
	e.testAbandonedCommand(t, executor, s)
}

// testAbandonedCommand checks that a command and its child end after the caller has left, though both ignore SIGHUP.
func (e *env) testAbandonedCommand(t *testing.T, executor driver.Executor, s driver.Server) {
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stdout, out := io.Pipe()
	defer func() { _ = stdout.Close() }()
	ended := make(chan error, 1)
	go func() {
		script := `trap '' HUP; sleep 7654321 & echo begins; wait`
		ended <- assert.ErrorOf(executor.Exec(ctx, s.UID, terminal.Command{Args: []string{"sh", "-c", script}, Stdout: out, Stderr: io.Discard}))
	}()
	assert.NoError(t, assert.ErrorOf(io.ReadFull(stdout, make([]byte, len("begins\n")))))
	leave()
	assert.True(t, assert.Receive(t, "the end of the call", ended) != nil, "the call of a caller who has left succeeds")
	assert.Eventually(t, "the command and its child end", func(t testing.TB) error {
		var found bytes.Buffer
		_, err := executor.Exec(t.Context(), s.UID, terminal.Command{Args: []string{"sh", "-c", `busybox ps | grep -c '[s]leep 7654321'`}, Stdout: &found, Stderr: io.Discard})
		assert.Equal(t, "the number of its processes", found.String(), "0\n")
		return err
	})
}
