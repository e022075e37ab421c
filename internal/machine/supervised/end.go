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

// endWithin is how long a supervisor may take to end once its QEMU has, or once it was killed.
const endWithin = time.Second

// End waits for the supervisor of a QEMU that has ended to record that and to end, and then ends it itself.
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
	return errors.New("the supervisor does not end, though its QEMU has")
}

// waitEnded waits a little until no supervisor has the lock, and the last one that is known does not run: it may have
// let go of the lock.
func (m Machine) waitEnded(ctx context.Context) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		follows, err := m.IsSupervised()
		if err != nil {
			return false, err
		}
		if !follows && !m.isLastAlive() {
			return true, nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return false, nil
		}
	}
}

// KillAll ends every supervisor of the machine, also those whose machine's directory was removed.
func (m Machine) KillAll(ctx context.Context) error {
	for _, pid := range proc.IDs() {
		if m.isSupervisor(pid) {
			if err := proc.Kill(ctx, pid, m.isSupervisor); err != nil {
				return fmt.Errorf("killing the supervisor %d of %s: %w", pid, m.Machine.UUID, err)
			}
		}
	}
	return nil
}

// killLast ends the supervisor that was started last. If that start was interrupted before the process ID was recorded, it
// searches all processes, since a supervisor that has released its lock cannot be found in another way.
func (m Machine) killLast(ctx context.Context) error {
	s, err := m.state().readState()
	if isUnknown(s, err) {
		return m.KillAll(ctx)
	}
	return m.killSupervisor(ctx, s)
}

// isLastAlive reports whether the supervisor that killLast would end still runs.
func (m Machine) isLastAlive() bool {
	s, err := m.state().readState()
	if isUnknown(s, err) {
		return slices.ContainsFunc(proc.IDs(), m.isSupervisor)
	}
	return s.isAlive()
}

// isUnknown reports whether a supervisor may run whose process ID is not recorded: its start was interrupted, or a power
// cut has damaged the state.
func isUnknown(s state, err error) bool {
	return err == nil && s.PID == 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// killSupervisor ends a supervisor, if it runs.
func (m Machine) killSupervisor(ctx context.Context, s state) error {
	if err := proc.Kill(ctx, s.PID, func(int) bool { return s.isAlive() }); err != nil {
		return fmt.Errorf("killing the supervisor %d of %s: %w", s.PID, m.Machine.UUID, err)
	}
	return nil
}

// isSupervisor reports whether a process is a supervisor of this machine. Its working directory may be hidden from all
// but root. Where the machine's directory is gone, only a process that works in a removed one counts: that of a released
// machine was moved.
func (m Machine) isSupervisor(pid int) bool {
	if !proc.HasOption(pid, installation.MachineOption, m.Machine.UUID) {
		return false
	}
	here, hereErr := os.Stat(m.Machine.Path)
	there, err := os.Stat(proc.Path(pid, "cwd"))
	switch {
	case errors.Is(hereErr, fs.ErrNotExist):
		return err == nil && there.Sys().(*syscall.Stat_t).Nlink == 0 //nolint:forcetypeassert // on Linux
	case errors.Is(err, fs.ErrPermission):
		return unix.Kill(pid, 0) == nil // of this program's user
	}
	return err == nil && hereErr == nil && os.SameFile(here, there)
}
