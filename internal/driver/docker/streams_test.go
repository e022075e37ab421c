// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// startShell starts a server with a shell in it, by a driver for d's cluster.
func startShell(t *testing.T, d *Driver) (driver.ServerSpec, driver.Server) {
	t.Helper()
	spec := newSpec(t, d, shellImage(t))
	spec.Stdin = true
	return spec, ensureState(t, d, spec, driver.StateRunning)
}

func mustConsole(t *testing.T, d *Driver, spec driver.ServerSpec) (io.ReadWriteCloser, *streams.Reading) {
	t.Helper()
	c, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	return c, streams.ReadAll(t, c)
}

// TestConsoleOfTerminal has a container with a terminal.
func TestConsoleOfTerminal(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, shellImage(t))
	spec.Stdin, spec.TTY = true, true
	ensureState(t, d, spec, driver.StateRunning)
	c, shown := mustConsole(t, d, spec)
	shown.WaitForText(t, "the shell is up\r\n")
	assert.NoError(t, assert.ErrorOf(io.WriteString(c, "a\x10\x11b\n"))) // Ctrl-P Ctrl-Q, by which docker attach leaves
	shown.WaitForText(t, "heard a\x10b\r\n")                             // the terminal itself handles Ctrl-Q
	l, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{})
	assert.NoError(t, err)
	text, err := io.ReadAll(l)
	if assert.NoError(t, err); !strings.Contains(string(text), "the shell is up\r\n") {
		t.Errorf("the log is %q", text)
	}
}

// TestConsoleShowsEarlierOutput checks that a console begins with the end of a long output.
func TestConsoleShowsEarlierOutput(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	c := guestImages(t).client
	runInContainer(t, c, s.ID, `i=0; while [ $i -lt 2000 ]; do echo "line $i end"; i=$((i+1)); done >/proc/1/fd/1`)
	awaitLog(t, d, spec, "line 1999 end")
	_, shown := mustConsole(t, d, spec)
	shown.WaitForText(t, "line 1999 end\n")
	printInContainer(t, c, s.ID, "after")
	shown.WaitForText(t, "line 1999 end\nafter\n")
	text, _ := shown.Now()
	assert.True(t, len(text) <= 4<<10+len("after\n") && len(text) >= 4<<10, "it shows %d bytes, want the last 4 KiB", len(text))
}

func awaitLog(t *testing.T, d *Driver, spec driver.ServerSpec, want string) {
	t.Helper()
	assert.Eventually(t, "the log", func(testing.TB) error {
		l, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{})
		if err != nil {
			return err
		}
		text, err := io.ReadAll(l)
		if err == nil && !strings.Contains(string(text), want) {
			err = fmt.Errorf("it has %d bytes and no %s", len(text), want)
		}
		return errors.Join(err, l.Close())
	})
}

// TestConsoleWithoutReader checks that a console whose caller does not read holds up neither
// the guest nor other readers, and shows the end.
func TestConsoleWithoutReader(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	slow, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	_, other := mustConsole(t, d, spec)
	runInContainer(t, guestImages(t).client, s.ID, `line=0123456789012345678901234567890123456789012345678901234567890123456789
		lines=; i=0; while [ $i -lt 100 ]; do lines="$lines$line
"; i=$((i+1)); done
		i=0; while [ $i -lt 300 ]; do echo "$lines"; i=$((i+1)); done >/proc/1/fd/1; echo THE END >/proc/1/fd/1`)
	other.WaitForText(t, "THE END")
	streams.ReadAll(t, slow).WaitForText(t, "THE END")
}

// TestLostConnections checks that an engine that is lost does not pass for the end of the
// server.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	spec, _ := startShell(t, d)
	_, console := mustConsole(t, d, spec)
	l, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Follow: true})
	assert.NoError(t, err)
	log := streams.ReadAll(t, l)
	ended := make(chan error, 1)
	started := newSignalWriter()
	go func() {
		_, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: []string{"sh", "-c", "echo started; sleep 300"}, Stdout: started})
		ended <- err
	}()
	<-started.written
	console.WaitForText(t, "the shell is up")
	log.WaitForText(t, "the shell is up")
	p.disconnect()
	console.WaitForEnd(t, driver.ErrUnavailable)
	log.WaitForEnd(t, driver.ErrUnavailable)
	wantError(t, <-ended, driver.ErrUnavailable, "")
	p.reconnect()
	_, again := mustConsole(t, d, spec)
	again.WaitForText(t, "the shell is up")
}

// signalWriter closes written at the first Write.
type signalWriter struct {
	once    sync.Once
	written chan struct{}
}

func newSignalWriter() *signalWriter { return &signalWriter{written: make(chan struct{})} }

// Write implements io.Writer.
func (w *signalWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.written) })
	return len(p), nil
}

// TestCommandEndsWithItsCaller checks that a command and its children end when the caller leaves,
// found by their environment and not by their name.
func TestCommandEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	for name, tty := range map[string]bool{"plain": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			started := newSignalWriter()
			seconds := map[bool]string{false: "1234", true: "1235"}[tty]
			go func() {
				_, err := d.Exec(ctx, spec.UID, terminal.Command{
					Args: []string{"sh", "-c", "trap '' HUP TERM INT; sleep " + seconds + " & echo started; sleep " + seconds + "; sleep " + seconds}, Stdout: started, TTY: tty,
				})
				ended <- err
			}()
			<-started.written
			awaitProcesses(t, s.ID, seconds, 3)
			cancel()
			assert.ErrorIs(t, "Exec", <-ended, context.Canceled)
			awaitProcesses(t, s.ID, seconds, 0)
		})
	}
}

// awaitProcesses waits until a container has a number of processes with a text in their
// command line.
func awaitProcesses(t *testing.T, id, text string, want int) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%d processes with %q", want, text), func(testing.TB) error {
		top, err := guestImages(t).client.ContainerTop(t.Context(), id, client.ContainerTopOptions{})
		if err != nil {
			return err
		}
		lines := slices.DeleteFunc(top.Processes, func(fields []string) bool { return !strings.Contains(strings.Join(fields, " "), text) })
		return assert.ErrorUnless(len(lines) == want, "it has %v", lines)
	})
}

// TestCommandWithoutShell checks that Exec ends with its caller in a container that lacks a
// shell to end the command.
func TestCommandWithoutShell(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	ensureState(t, d, spec, driver.StateRunning)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := d.Exec(ctx, spec.UID, terminal.Command{Args: []string{"/demo-guest"}, Stdout: io.Discard})
	assert.True(t, errors.Is(err, context.DeadlineExceeded) || err == nil, "it ended with %v", err)
}

// TestCommandOfStoppedServer stops the server under a command.
func TestCommandOfStoppedServer(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	started := newSignalWriter()
	codes := make(chan int, 1)
	go func() {
		code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: []string{"sh", "-c", "echo started; sleep 300"}, Stdout: started})
		assert.ErrorIs(t, "Exec", err, nil)
		codes <- code
	}()
	<-started.written
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerKill(t.Context(), s.ID, client.ContainerKillOptions{Signal: "KILL"})))
	assert.Equal(t, "it ended with", <-codes, 137)
}

// TestTerminalInput checks how the end of the input reaches a terminal, and that no key is
// withheld from the command.
func TestTerminalInput(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, _ := startShell(t, d)
	for input, want := range map[string]string{
		"":                 "0 ends",
		"a\n":              "a ends",
		"unfinished":       "unfinished ends",
		"p\x10\x11q\n":     "p\x10q ends", // the terminal itself handles Ctrl-Q
		"\x1e\x1e\n":       "\x1e\x1e ends",
		"\x1eback\x1e x\n": "\x1eback\x1e x ends",
	} {
		var out bytes.Buffer
		code, err := d.Exec(t.Context(), spec.UID, terminal.Command{
			Args:  []string{"sh", "-c", `stty -echo; last=0; while read -r line; do last=$line; done; echo "${line:-$last} ends"`},
			Stdin: strings.NewReader(input), Stdout: &out, TTY: true,
		})
		assert.True(t, err == nil && code == 0 && strings.Contains(out.String(), want),
			"%q: it ended with %d, %v, and printed %q, want %q", input, code, err, out.String(), want)
	}
}

// TestStreamsOfDuplicate checks that two containers with one UID are both refused, and a
// container that is paused.
func TestStreamsOfDuplicate(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	assert.NoError(t, framework.PauseContainer(t.Context(), guestImages(t).client, s.ID))
	for name, call := range streamCalls(d, spec) {
		if err := call(t.Context()); name != "logs" && name != "interfaces" {
			wantError(t, err, driver.ErrRetry, "", "paused")
		} else if err != nil {
			t.Errorf("%s of a paused server: %v", name, err)
		}
	}
	createUnmanaged(t, "", containerLabels(spec, d.Options.ClusterID, spec.Image.Source))
	for _, call := range streamCalls(d, spec) {
		wantError(t, call(t.Context()), driver.ErrRetry, driver.ReasonDuplicate)
	}
}

func streamCalls(d *Driver, spec driver.ServerSpec) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"console": func(ctx context.Context) error {
			c, err := d.Console(ctx, spec.UID)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"logs": func(ctx context.Context) error {
			l, err := d.Logs(ctx, spec.UID, driver.LogOptions{})
			if err == nil {
				err = l.Close()
			}
			return err
		},
		"exec": func(ctx context.Context) error {
			_, err := d.Exec(ctx, spec.UID, terminal.Command{Args: []string{"cat"}})
			return err
		},
		"dial": func(ctx context.Context) error {
			c, err := d.Dial(ctx, spec.UID, 80)
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"interfaces": func(ctx context.Context) error {
			_, err := d.Interfaces(ctx, spec.UID)
			return err
		},
	}
}

// TestStreamsOfHangingEngine checks that no call waits for an engine that does not answer,
// although its context lacks a deadline.
func TestStreamsOfHangingEngine(t *testing.T) {
	t.Parallel()
	plain := newDriver(t, Options{})
	spec, _ := startShell(t, plain)
	for at, calls := range map[string][]string{
		"/containers/json": {"console", "logs", "exec", "dial", "interfaces"},
		"/json":            {"console", "logs", "exec", "dial", "interfaces"},
		"/attach":          {"console"}, "/logs": {"console", "logs"}, "/exec": {"exec"}, "/start": {"exec"},
	} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			timeout := time.Second
			if at == "/start" { // the requests before it are to succeed
				timeout = 10 * time.Second
			}
			d := newDriver(t, Options{ClusterID: plain.Options.ClusterID, Host: p.host(), CallTimeout: timeout})
			p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, at) {
					return false
				}
				_, _ = io.Copy(io.Discard, r.Body) // the server notices only then that the caller leaves
				return hangRequest(r)
			})
			for _, name := range calls {
				err := streamCalls(d, spec)[name](t.Context())
				if at == "/start" { // it may have been started
					assert.True(t, driver.Ambiguous(err), "%s: got %v, want an ambiguous error", name, err)
					continue
				}
				wantError(t, err, driver.ErrUnavailable, "", "in time")
			}
		})
	}
}

// TestRestartDuringCall restarts the container between the lookup and the connection, which
// then may lead to another one.
func TestRestartDuringCall(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dial", "console"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			d := newDriver(t, Options{Host: p.host()})
			spec, s := startShell(t, d)
			var inspections atomic.Int32
			restarted := make(chan error, 1)
			p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, s.ID+"/json") && inspections.Add(1) == 2 {
					_, err := guestImages(t).client.ContainerRestart(context.WithoutCancel(t.Context()), s.ID, client.ContainerRestartOptions{Timeout: new(0)})
					restarted <- err
				}
				return false
			})
			wantError(t, streamCalls(d, spec)[name](t.Context()), driver.ErrRetry, "", "restarted")
			assert.NoError(t, assert.Receive(t, "the end of the restart", restarted)) // the call may end before
		})
	}
}

// TestLogsOfOtherDriver has a container whose log cannot be read.
func TestLogsOfOtherDriver(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, shellImage(t))
	options := d.Options.createOptions(spec, containerName(spec), spec.Image.Source)
	options.HostConfig.LogConfig = container.LogConfig{Type: "none"}
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerCreate(t.Context(), options)))
	s := ensureState(t, d, spec, driver.StateRunning)
	wantError(t, assert.ErrorOf(d.Logs(t.Context(), spec.UID, driver.LogOptions{})), driver.ErrUnsupported, "", "log driver")
	_, shown := mustConsole(t, d, spec)
	printInContainer(t, guestImages(t).client, s.ID, "later")
	shown.WaitForText(t, "later\n")
}

// TestPreviousLog checks the last lines of the output before a run, with lines that the engine
// stores in parts, and one without an end.
func TestPreviousLog(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	c := guestImages(t).client
	long := strings.Repeat("x", 40<<10)
	runInContainer(t, c, s.ID, `x=0123456789abcdef; while [ ${#x} -lt 40960 ]; do x=$x$x; done; { echo first; echo "$x"; printf unfinished; } >/proc/1/fd/1`)
	spec.RestartRun, spec.StopBy = s.Run, time.Now().Add(time.Hour)
	ensureNewRun(t, d, spec, s.Run)
	for lines, want := range map[int64]string{1: "unfinished", 2: long[:0] + "f\nunfinished", 3: "first\n", 0: ""} {
		l, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Previous: true, TailLines: &lines})
		assert.NoError(t, err)
		text, err := io.ReadAll(l)
		assert.NoError(t, errors.Join(err, l.Close()))
		assert.True(t, strings.Contains(string(text), want) && int64(strings.Count(string(text)+"\n", "\n")) <= max(1, lines),
			"the last %d lines are %.40q and %d bytes, want %q in them", lines, text, len(text), want)
	}
}

// TestRotatedLog checks that a log can be read to its end after rotation has removed its beginning, and
// that --previous reads it after a restart.
func TestRotatedLog(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{LogSize: "64Ki", LogFiles: 2})
	spec, s := startShell(t, d)
	runInContainer(t, guestImages(t).client, s.ID,
		`x=0123456789abcdef; while [ ${#x} -lt 1024 ]; do x=$x$x; done; { i=0; while [ $i -lt 400 ]; do echo "$i $x"; i=$((i+1)); done; echo last; } >/proc/1/fd/1`)
	awaitLog(t, d, spec, "last\n")
	read := func(previous bool) string {
		l, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Previous: previous})
		assert.NoError(t, err)
		text, err := io.ReadAll(l)
		assert.NoError(t, errors.Join(err, l.Close()))
		return string(text)
	}
	if text := read(false); !strings.HasSuffix(text, "last\n") || strings.Contains(text, "the shell is up") || len(text) > 256<<10 {
		t.Errorf("%d bytes are kept: %.80q", len(text), text)
	}
	spec.RestartRun, spec.StopBy = s.Run, time.Now().Add(time.Hour)
	ensureNewRun(t, d, spec, s.Run)
	awaitLog(t, d, spec, "the shell is up\n")
	text := read(true)
	assert.True(t, strings.HasSuffix(text, "last\n"), "the previous log has %d bytes: %.80q", len(text), text)
}

// TestDialWithoutNetwork has a container without an address.
func TestDialWithoutNetwork(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	spec, s := startShell(t, d)
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.NetworkDisconnect(t.Context(), "bridge", client.NetworkDisconnectOptions{Container: s.ID})))
	wantError(t, assert.ErrorOf(d.Dial(t.Context(), spec.UID, 80)), driver.ErrInvalid, "", "port 80", "spec.ports")
	all, err := d.Interfaces(t.Context(), spec.UID)
	if assert.NoError(t, err); len(all) != 0 {
		t.Errorf("it has %+v", all)
	}
}

// TestStreamsLeaveNothing opens many streams and drops them in all stages.
func TestStreamsLeaveNothing(t *testing.T) { //nolint:paralleltest // it counts what the process has
	d := newDriver(t, Options{})
	spec, _ := startShell(t, d)
	open := func(n int) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { dropStream(t, d, spec, i) })
		}
		all.Wait()
	}
	count := 40
	if tier.IsFull() {
		count = 200
	}
	open(20)
	routines, files := runtime.NumGoroutine(), openFiles(t)
	open(count)
	assert.Eventually(t, "the end of all that was opened", func(testing.TB) error {
		r, f := runtime.NumGoroutine(), openFiles(t)
		return assert.ErrorUnless(r <= routines+10 && f <= files+10, "there are %d goroutines and %d files, before there were %d and %d", r, f, routines, files)
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	assert.NoError(t, err)
	return len(entries)
}

// dropStream opens a stream of some kind and leaves it after some time.
func dropStream(t *testing.T, d *Driver, spec driver.ServerSpec, i int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*10)*time.Millisecond)
	defer cancel()
	switch i % 4 {
	case 0:
		if c, err := d.Console(ctx, spec.UID); err == nil {
			_, _ = io.WriteString(c, "x\n")
			_, _ = io.Copy(io.Discard, c)
		}
	case 1:
		if l, err := d.Logs(ctx, spec.UID, driver.LogOptions{Follow: true}); err == nil {
			_, _ = io.Copy(io.Discard, l)
		}
	case 2:
		in, typed := io.Pipe()
		_, _ = d.Exec(ctx, spec.UID, terminal.Command{Args: []string{"cat"}, Stdin: in, TTY: i%8 == 2})
		_ = typed.Close()
	case 3:
		if c, err := d.Dial(ctx, spec.UID, 80); err == nil {
			_ = c.Close()
		}
	}
}
