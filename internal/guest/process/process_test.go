// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs/bugstest"
)

// table has all processes of this package's tests, which start none by other means.
var table = NewTable()

func TestMain(m *testing.M) {
	go table.Reap()
	os.Exit(m.Run())
}

// command runs a shell's script as this user.
func command(t *testing.T, script string) Command {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = null.Close() })
	me := users.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{uint32(os.Getgid())}} //nolint:gosec // IDs
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Dir: "/", User: me, Files: []*os.File{null, null, null}}
}

// TestEnds checks that each process has the right end, though many end at a time.
func TestEnds(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for code := range 60 {
		group.Go(func() {
			c := command(t, "exit "+string(rune('0'+code%10)))
			p, err := table.Start(c)
			if err != nil {
				t.Error(err)
				return
			}
			<-p.Done()
			want := (End{Code: code % 10})
			assert.True(t, p.End() == want, "it ends with %+v, want %+v", p.End(), want)
		})
	}
	group.Wait()
}

// TestSignal checks that a signal ends a process, and that one after its end reaches nobody.
func TestSignal(t *testing.T) {
	t.Parallel()
	p, err := table.Start(command(t, "sleep 60"))
	assert.NoError(t, err)
	assert.NoError(t, p.Signal(syscall.SIGTERM))
	<-p.Done()
	want := (End{Code: 143, Signal: 15})
	assert.True(t, p.End() == want, "it ends with %+v, want %+v", p.End(), want)
	assert.NoError(t, p.Signal(syscall.SIGKILL))
}

// TestEndSession checks that all processes of a session end, though they ignore SIGHUP and are in other process groups,
// and that another session goes on.
func TestEndSession(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	script := fmt.Sprintf("set -m; trap '' HUP; sleep 1000 & echo $! >%[1]s; setsid sleep 1000 & echo $! >>%[1]s; echo end >>%[1]s; wait", pids)
	c := command(t, script)
	p, err := table.Start(c)
	assert.NoError(t, err)
	var lines []string
	assert.Eventually(t, "the processes to run", func(testing.TB) error {
		text, err := os.ReadFile(pids)
		lines = strings.Fields(string(text))
		return errors.Join(err, assert.ErrorUnless(len(lines) == 3, "the file has %q", text))
	})
	child, err1 := strconv.Atoi(lines[0])
	stranger, err2 := strconv.Atoi(lines[1])
	assert.NoError(t, errors.Join(err1, err2))
	defer func() { _ = syscall.Kill(stranger, syscall.SIGKILL) }()
	assert.Eventually(t, "the other session to begin", func(testing.TB) error {
		session, err := unix.Getsid(stranger)
		return errors.Join(err, assert.ErrorUnless(session == stranger, "the session is %d", session))
	})
	p.EndSession()
	<-p.Done()
	assert.Eventually(t, "the child to end", func(testing.TB) error {
		return assert.ErrorUnless(errors.Is(syscall.Kill(child, 0), syscall.ESRCH), "it runs")
	})
	assert.NoError(t, syscall.Kill(stranger, 0))
}

// TestLookPath checks which files are programs, and the errors of others.
func TestLookPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NoError(t, os.MkdirAll(filepath.Join(dir, "first", "tool"), 0o750)) // a folder is not a program
	assert.NoError(t, os.MkdirAll(filepath.Join(dir, "second"), 0o750))
	tool := filepath.Join(dir, "second", "tool")
	assert.NoError(t, os.WriteFile(tool, nil, 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(dir, "second", "text"), nil, 0o600))
	env := []string{"PATH=/no/such", "PATH=" + filepath.Join(dir, "first") + ":second"}
	for name, want := range map[string]string{"tool": tool, "./second/tool": tool, tool: tool} {
		got, err := LookPath(name, dir, env)
		if assert.NoError(t, err); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for name, kind := range map[string]error{
		"none": ErrNotFound, "text": ErrNotFound, "./none": ErrNotFound, "second/text": ErrNotExecutable, "./first/tool": ErrNotExecutable,
		"second/text/below": ErrNotExecutable,
	} {
		assert.ErrorIs(t, name, assert.ErrorOf(LookPath(name, dir, env)), kind)
	}
}

// TestEnvironment checks that the last of a name counts, and that only missing names are added.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	got := Environment([]string{"A=1", "B=2", "A=3=4", "HOME=", "EMPTY="}, "HOME=/root", "B=5", "PATH=/bin", "EMPTY=no")
	want := []string{"A=3=4", "B=2", "HOME=/root", "EMPTY=", "PATH=/bin"}
	assert.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
}

// TestSeededBugs checks that the tests of this package find the bugs of its files.
func TestSeededBugs(t *testing.T) {
	t.Parallel()
	bugstest.Check(t, "internal/guest/process", nil, "-test.timeout=1m")
}
