// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/prometheus/procfs"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// numbers returns what seq prints.
func numbers(last int) []byte {
	var text bytes.Buffer
	for n := range last {
		fmt.Fprintln(&text, n+1)
	}
	return text.Bytes()
}

// readSplit reads a log to its end, by stream.
func readSplit(t *testing.T, log io.ReadCloser) (text [2]bytes.Buffer, err error) {
	t.Helper()
	defer func() { _ = log.Close() }()
	split, ok := log.(driver.SplitLog)
	assert.Require(t, ok, "the log of %T has one stream", log)
	buffer := make([]byte, 32<<10)
	for {
		n, isStderr, err := split.ReadStream(buffer)
		if stream := 0; n > 0 {
			if isStderr {
				stream = 1
			}
			_, _ = text[stream].Write(buffer[:n])
		}
		if err != nil {
			return text, err
		}
	}
}

// TestContainerOutputIsWhole checks that all that a container image's command prints can be read, each stream apart,
// while its supervisor is killed and afterwards, and that the log of the run before is kept.
func TestContainerOutputIsWhole(t *testing.T) {
	t.Parallel()
	const last = 2_000_000
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", `seq 1 "$0" & seq 1 1000 >&2; wait; exit 3`}, Env: []string{"PATH=/bin"}})
	c.spec.Args = []string{fmt.Sprint(last)}
	first := reach(t, c.d, c.spec, driver.StateRunning)
	keepWatching(t, c.d)
	followed, err := c.d.Logs(t.Context(), c.spec.UID, driver.LogOptions{Follow: true, Attached: true})
	assert.NoError(t, err)
	began := time.Now()
	go func() {
		c.prints(t, "\n100000\n")
		signalSupervisor(t, c.d.Host.InstanceOf(c.spec.UID), syscall.SIGKILL)
	}()
	got, err := readSplit(t, followed)
	t.Logf("%d bytes in %s", got[0].Len(), time.Since(began))
	assert.ErrorIs(t, "the end", err, io.EOF)
	want := [2][]byte{numbers(last), numbers(1000)}
	wantOutput(t, got, want)
	c.wantExit(t, 3, "Error")
	again, err := readSplit(t, openLog(t, c.d, c.spec, driver.LogOptions{}))
	assert.ErrorIs(t, "the end", err, io.EOF)
	wantOutput(t, again, want)
	wantError(t, assert.ErrorOf(c.d.Logs(t.Context(), c.spec.UID, driver.LogOptions{Previous: true})), driver.ErrRetry, "no run before")

	c.spec.Args, c.spec.RestartRun = []string{"2"}, first.Run
	reach(t, c.d, c.spec, driver.StateRunning)
	c.spec.RestartRun = ""
	c.wantExit(t, 3, "Error")
	for previous, want := range map[bool][2][]byte{true: want, false: {numbers(2), numbers(1000)}} {
		got, err := readSplit(t, openLog(t, c.d, c.spec, driver.LogOptions{Previous: previous}))
		assert.ErrorIs(t, "the end", err, io.EOF)
		wantOutput(t, got, want)
	}
}

func wantOutput(t *testing.T, got [2]bytes.Buffer, want [2][]byte) {
	t.Helper()
	for stream := range want {
		assert.True(t, bytes.Equal(got[stream].Bytes(), want[stream]), "stream %d has %d bytes, want %d", stream, got[stream].Len(), len(want[stream]))
	}
}

// TestContainerOutputIsHeldBack checks that a command waits for an attached reader who reads nothing, goes on once that
// leaves, and that one who follows the log learns how much of it was removed.
func TestContainerOutputIsHeldBack(t *testing.T) {
	t.Parallel()
	const bound, last = 2 << 20, 1_500_000
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", `until test -e /dev/shm/go; do sleep 0.1; done; seq 1 "$0"`}, Env: []string{"PATH=/bin"}})
	c.d.Host.OutputBound = bound
	c.spec.Args = []string{fmt.Sprint(last)}
	reach(t, c.d, c.spec, driver.StateRunning)
	keepWatching(t, c.d)
	attach := func(skip int64) driver.SplitLog {
		return openLog(t, c.d, c.spec, driver.LogOptions{Follow: true, Attached: true, SkipStdout: skip}).(driver.SplitLog) //nolint:forcetypeassert // its contract
	}
	attached, follower := attach(0), openLog(t, c.d, c.spec, driver.LogOptions{Follow: true})
	c.exec(t, false, "", "touch /dev/shm/go")
	path := c.d.Host.InstanceOf(c.spec.UID).Machine.File(output.FileNames[output.Stdout])
	assert.Eventually(t, "the output stops", func(t testing.TB) error {
		before := sizeOf(t, path)
		time.Sleep(time.Second) // nothing shows that nothing comes
		return assert.ErrorUnless(before > bound/4 && sizeOf(t, path) == before, "there are %d bytes, and %d before", sizeOf(t, path), before)
	})
	held := sizeOf(t, path)
	assert.True(t, held < bound, "the command is held after %d bytes", held)
	got, err := io.ReadAll(io.LimitReader(attached, held))
	assert.True(t, err == nil && bytes.Equal(got, numbers(last)[:held]), "the first %d bytes are %d others, %v", held, len(got), err)
	assert.Eventually(t, "the output goes on", func(t testing.TB) error {
		return assert.ErrorUnless(sizeOf(t, path) > held, "it does not")
	})
	assert.NoError(t, attached.Close())
	c.wantExit(t, 0, "Completed")

	want := numbers(last)
	_, lostErr := readSplit(t, attach(held))
	lost, ok := errors.AsType[*terminal.LostOutputError](lostErr)
	assert.Require(t, ok && lost.Stderr == 0 && lost.Stdout > 0, "the rest is read with %v", lostErr)
	rest, err := readSplit(t, attach(held+lost.Stdout))
	assert.ErrorIs(t, "the end", err, io.EOF)
	wantOutput(t, rest, [2][]byte{want[held+lost.Stdout:]})
	_, lostErr = readSplit(t, follower)
	_, ok = errors.AsType[*terminal.LostOutputError](lostErr)
	assert.True(t, ok, "the follower ends with %v", lostErr)
}

// TestContainerOutputOnFullDisk checks that a command prints on while the disk of the host is full, that old output makes
// room for new, and that QEMU does not try again and again.
func TestContainerOutputOnFullDisk(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes another boot; the gate fills a disk in package output")
	const last = 3_000_000
	e, _ := newDriverOnSmallDisk(t, 48)
	script := `until test -e /dev/shm/go; do sleep 0.1; done; seq 1 "$0"; echo printed >&2; exec sleep 1000000`
	c := newContainerOn(t, e, framework.BusyBoxImage(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}}))
	c.spec.Args, c.spec.RootDiskBytes = []string{fmt.Sprint(last)}, 256<<20
	reach(t, c.d, c.spec, driver.StateRunning)
	keepWatching(t, c.d)
	_, code := c.exec(t, false, "", "sync") // a guest that writes to a full disk is paused
	assert.Equal(t, "the exit code of sync", code, 0)
	e.fill(t)
	c.exec(t, false, "", "touch /dev/shm/go")
	c.prints(t, "printed\n")
	kept, err := readSplit(t, openLog(t, c.d, c.spec, driver.LogOptions{}))
	assert.ErrorIs(t, "the end", err, io.EOF)
	want := numbers(last)
	got := kept[0].Bytes()
	assert.True(t, len(got) >= 64<<10 && len(got) < len(want) && bytes.HasSuffix(want, got), "kept are %d bytes, which end with %q", len(got), got[max(0, len(got)-40):])
	process, err := procfs.NewProc(c.d.Host.InstanceOf(c.spec.UID).Machine.PID())
	assert.NoError(t, err)
	before, err := process.Stat()
	assert.NoError(t, err)
	time.Sleep(2 * time.Second) // nothing shows that nothing is done
	after, err := process.Stat()
	assert.NoError(t, err)
	used := after.CPUTime() - before.CPUTime()
	assert.True(t, used < 1, "QEMU has used %.2f s of CPU time in 2 s", used)
}

// TestInputOfKilledSupervisor checks that the input of a command stays open when its supervisor is killed, and that a console
// which typed learns of that.
func TestInputOfKilledSupervisor(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes a boot; the gate has two consoles that type to a command one after the other")
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/cat"}})
	c.spec.Stdin, c.spec.RestartPolicy = true, driver.RestartNever
	reach(t, c.d, c.spec, driver.StateRunning)
	before, err := c.d.Console(t.Context(), c.spec.UID)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(before.Write([]byte("before\n"))))
	c.prints(t, "before\n")
	replaceSupervisor(t, c.d.Host.InstanceOf(c.spec.UID))
	assert.Eventually(t, "the console ends", func(testing.TB) error {
		return assert.ErrorUnless(assert.ErrorOf(before.Write([]byte("x"))) != nil, "it takes what is typed")
	})
	after, err := c.d.Console(t.Context(), c.spec.UID)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(after.Write([]byte("after\n"))))
	c.prints(t, "before\nafter\n")
	input, ok := after.(driver.InputConsole)
	assert.Require(t, ok, "the console is a %T", after)
	assert.NoError(t, input.CloseWrite())
	c.wantExit(t, 0, "Completed")
}
