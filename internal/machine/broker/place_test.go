// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestBrokerThatEnds checks that a broker that ends at once is restarted once at once, and then after growing waits,
// however often it is asked for, and that the error says when and where the reason is.
func TestBrokerThatEnds(t *testing.T) {
	t.Parallel()
	dir := framework.ShortTempDir(t)
	assert.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "broker"), 0o700)))
	program := filepath.Join(dir, "program")
	assert.NoError(t, framework.BuildStatic(program, "hack/guest/pack")) // which ends at once
	installed, err := installation.InstallProgram(filepath.Join(dir, "programs"), program)
	assert.NoError(t, err)
	starts, clock := 0, testingclock.NewFakePassiveClock(time.Unix(0, 0))
	p := Place{
		Folder:  machine.Machine{Path: filepath.Join(dir, "broker"), Mark: "broker"},
		Program: func() (*installation.Program, error) { return installed, nil },
		StartAs: func(start func(*confine.User) error) error {
			if starts++; starts > 10 {
				return errors.New("it is started without end")
			}
			return start(nil)
		},
		Starts: proc.NewStarts(clock),
	}
	for _, step := range []struct {
		wait time.Duration
		want int
	}{{0, 2}, {99 * time.Millisecond, 2}, {time.Millisecond, 3}, {100 * time.Millisecond, 3}, {100 * time.Millisecond, 4}} {
		clock.SetTime(clock.Now().Add(step.wait))
		for range 3 {
			assert.ErrorIs(t, "connecting", p.Connect(t.Context(), machineOf("1", "ns", "a", "10.1.0.2"), nil), proc.ErrEndsSoon, logFile)
		}
		assert.True(t, starts == step.want, "after %s more it was started %d times, want %d", step.wait, starts, step.want)
	}
}

// TestBrokerWithoutLock checks that a broker which lets go of its lock is gone before another is started.
func TestBrokerWithoutLock(t *testing.T) {
	t.Parallel()
	installed, err := installation.InstallProgram(t.TempDir(), "/bin/true")
	assert.NoError(t, err)
	before := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read line", installation.MachineOption, "broker")
	before.Dir = framework.ShortTempDir(t)
	assert.NoError(t, errors.Join(assert.ErrorOf(before.StdinPipe()), before.Start())) // it ends with its input
	errStarted := errors.New("another is started")
	p := Place{
		Folder:  machine.Machine{Path: before.Dir, Mark: "broker"},
		Program: func() (*installation.Program, error) { return installed, nil },
		StartAs: func(func(*confine.User) error) error {
			assert.True(t, !proc.HasOption(before.Process.Pid, installation.MachineOption, "broker"), "there are two brokers")
			return errStarted
		},
		Starts: proc.NewStarts(testingclock.NewFakePassiveClock(time.Unix(0, 0))),
	}
	assert.ErrorIs(t, "connecting", p.Connect(t.Context(), machineOf("1", "ns", "a", "10.1.0.2"), nil), errStarted)
	_ = errors.Join(before.Process.Kill(), before.Wait())
}

// TestRemoveWithoutTime checks that a broker is not taken for one that does not answer by a caller who has ended before
// it asked.
func TestRemoveWithoutTime(t *testing.T) {
	t.Parallel()
	p := Place{Folder: machine.Machine{Path: t.TempDir(), Mark: "broker"}}
	lock, err := p.Folder.TryLock(lockFile)
	assert.NoError(t, err)
	defer func() { _ = lock.Close() }()
	ended, end := context.WithCancel(t.Context())
	end()
	assert.ErrorIs(t, "a caller that has ended", p.Remove(ended, "1"), context.Canceled)
}
