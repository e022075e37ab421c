// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervised

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/proc"
)

// startWithin is how long the process ID of a new supervisor may take to be recorded.
const startWithin = 3 * time.Second

// Reach returns a client of the supervisor of a running QEMU. It starts a supervisor if there is none, and waits while
// another caller starts one. It replaces a supervisor whose start was interrupted.
func (m Machine) Reach(ctx context.Context) (*control.Client, error) {
	hasStarted := false
	for deadline := time.After(startWithin); ; {
		lock, err := m.Machine.TryLock(lockFile)
		if err == nil && hasStarted {
			return nil, errors.Join(fmt.Errorf("the supervisor has ended at once: see %s", m.Machine.File(logFile)), lock.Close())
		}
		if err == nil {
			hasStarted = true
			err = errors.Join(m.reloadAndStart(ctx, lock), lock.Close())
		}
		if err != nil && !errors.Is(err, machine.ErrRunning) {
			return nil, err
		}
		s, err := m.state().readState()
		if err == nil && s.isAlive() {
			return m.newClient(s), nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return nil, errors.Join(fmt.Errorf("waiting for the start of the supervisor: %w", ctx.Err()), err)
		}
		select {
		case <-deadline:
			if err := m.KillAll(ctx); err != nil {
				return nil, err
			}
			deadline = time.After(startWithin)
		default:
		}
	}
}

// reloadAndStart starts a supervisor for the current run. The caller has the lock. Reload comes after the check for QEMU:
// before QEMU runs, it could return the configuration of the previous run.
func (m Machine) reloadAndStart(ctx context.Context, lock *os.File) error {
	if m.Machine.PID() == 0 {
		return ErrNoQEMU
	}
	current, err := m.Reload()
	if err != nil {
		return err
	}
	current.Sockets = m.Sockets
	return current.startSupervisor(ctx, lock)
}

// Replace kills the supervisor that has a token, so that the next call of Reach starts another. QEMU goes on.
func (m Machine) Replace(ctx context.Context, token string) error {
	pause := func() bool { return proc.Pause(ctx, proc.PollEvery) }
	s, err := m.state().readUnlocked(pause)
	switch {
	case err == nil && s.Token != token: // another supervisor has taken its place
		return nil
	case err == nil && s.isAlive():
		return m.killSupervisor(ctx, s)
	}
	return m.KillAll(ctx)
}

// ReplaceOutdated is Replace for a supervisor of another version, unless this program's version is no longer the latest.
// It fails, and keeps the supervisor, if a new one could not be started: the program is missing, QEMU is too old, or the
// disk is full.
func (m Machine) ReplaceOutdated(ctx context.Context, token string) (replaced bool, err error) {
	s, err := m.state().readState()
	if err != nil {
		return false, nil //nolint:nilerr // There is no supervisor, or one is being started.
	}
	installed, err := m.Program()
	switch {
	case err == nil && (s.Program == installed.Digest() || !installed.IsLatest()):
		return false, nil
	case err == nil:
		err = m.checkStart()
	}
	if err != nil {
		return false, fmt.Errorf("the supervisor of an earlier version cannot be replaced: %w", err)
	}
	return true, m.Replace(ctx, token)
}

// checkStart fails if a new supervisor could not be started.
func (m Machine) checkStart() error {
	if err := m.checkQEMU(); err != nil {
		return err
	}
	f, err := m.state().openFile()
	if err != nil {
		return err
	}
	return f.Close()
}
