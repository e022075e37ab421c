// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervised

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/proc"
)

// endWithin is how long a supervisor may take to end after the end of its QEMU, or after SIGKILL.
const endWithin = time.Second

// End waits until the supervisor of an ended QEMU has recorded that end and has ended itself. It kills a supervisor that
// does not end in time.
func (m Machine) End(ctx context.Context) error {
	last, _ := m.state().readState()
	if ended, err := m.waitEnded(ctx); ended || err != nil {
		return err
	}
	if err := m.Replace(ctx, last.Token); err != nil {
		return err
	}
	if ended, err := m.waitEnded(ctx); ended || err != nil {
		return err
	}
	return errors.New("the supervisor does not end after SIGKILL")
}

// waitEnded waits up to endWithin until no process has the lock and the recorded supervisor does not run. That one may
// run without the lock.
func (m Machine) waitEnded(ctx context.Context) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		isSupervised, err := m.IsSupervised()
		if err != nil {
			return false, err
		}
		if !isSupervised && !m.isLastAlive() {
			return true, nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return false, nil
		}
	}
}

// KillAll kills every supervisor of the machine. It finds them even if the machine's directory was removed.
func (m Machine) KillAll(ctx context.Context) error {
	for _, pid := range proc.IDs() {
		if m.isSupervisor(pid) {
			if err := proc.Kill(ctx, pid, m.isSupervisor); err != nil {
				return fmt.Errorf("killing the supervisor %d of %s: %w", pid, m.Machine.Mark, err)
			}
		}
	}
	return nil
}

// killLast kills the supervisor that was started last. If its process ID was not recorded, killLast searches all processes.
// The lock is not enough, since a supervisor may run without it.
func (m Machine) killLast(ctx context.Context) error {
	s, err := m.state().readState()
	if isUnknown(s, err) {
		return m.KillAll(ctx)
	}
	return m.killSupervisor(ctx, s)
}

// isLastAlive reports whether a supervisor runs that killLast would kill.
func (m Machine) isLastAlive() bool {
	s, err := m.state().readState()
	if isUnknown(s, err) {
		return slices.ContainsFunc(proc.IDs(), m.isSupervisor)
	}
	return s.isAlive()
}

// isUnknown reports whether a supervisor may run without a recorded process ID: its start was interrupted, or a power cut
// has damaged the state.
func isUnknown(s state, err error) bool {
	return (err == nil && s.PID == 0) || (err != nil && !errors.Is(err, fs.ErrNotExist))
}

// killSupervisor kills a supervisor, if it runs.
func (m Machine) killSupervisor(ctx context.Context, s state) error {
	if err := proc.Kill(ctx, s.PID, func(int) bool { return s.isAlive() }); err != nil {
		return fmt.Errorf("killing the supervisor %d of %s: %w", s.PID, m.Machine.Mark, err)
	}
	return nil
}

// isSupervisor reports whether a process is a supervisor of this machine: it has the mark on its command line, and works
// in the machine's directory. If that directory does not exist, the process must work in a removed directory. The
// directory of a released machine was moved, not removed.
func (m Machine) isSupervisor(pid int) bool {
	if !proc.HasOption(pid, installation.MachineOption, m.Machine.Mark) {
		return false
	}
	here, hereErr := os.Stat(m.Machine.Path)
	there, err := os.Stat(proc.Path(pid, "cwd"))
	switch {
	case errors.Is(hereErr, fs.ErrNotExist):
		return err == nil && there.Sys().(*syscall.Stat_t).Nlink == 0 //nolint:forcetypeassert // on Linux
	case errors.Is(err, fs.ErrPermission): // only root sees the working directory of a confined process
		return unix.Kill(pid, 0) == nil // the process runs as this program's user
	}
	return err == nil && hereErr == nil && os.SameFile(here, there)
}
