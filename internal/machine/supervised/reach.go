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

// startWithin is how long the start of a supervisor may take until it is known which process it is.
const startWithin = 3 * time.Second

// Reach returns a client of the supervisor of a QEMU that runs. It starts the supervisor if there is none, and waits
// for one that another caller is starting. One whose start was interrupted is replaced.
func (m Machine) Reach(ctx context.Context) (*control.Client, error) {
	hasStarted := false
	for late := time.After(startWithin); ; {
		lock, err := m.Machine.TryLock(lockFile)
		if err == nil && hasStarted {
			return nil, errors.Join(fmt.Errorf("the supervisor has ended at once: see %s", m.Machine.File(logFile)), lock.Close())
		}
		if err == nil {
			hasStarted = true
			err = errors.Join(m.startNow(ctx, lock), lock.Close())
		}
		if err != nil && !errors.Is(err, machine.ErrRunning) {
			return nil, err
		}
		s, err := m.state().readState()
		if err == nil && s.isAlive() {
			return m.clientOf(s), nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return nil, errors.Join(fmt.Errorf("the supervisor is being started: %w", ctx.Err()), err)
		}
		select {
		case <-late:
			if err := m.KillAll(ctx); err != nil {
				return nil, err
			}
			late = time.After(startWithin)
		default:
		}
	}
}

// startNow starts a supervisor for the current run. The caller has the lock, so no other is started meanwhile. What is
// recorded before there is a QEMU may be of the run before.
func (m Machine) startNow(ctx context.Context, lock *os.File) error {
	if m.Machine.PID() == 0 {
		return ErrNoQEMU
	}
	now, err := m.Reload()
	if err != nil {
		return err
	}
	now.Sockets = m.Sockets
	return now.startSupervisor(ctx, lock)
}

// Replace ends the supervisor that has a token, whatever it does, so that the next call of Reach starts another. QEMU
// runs on.
func (m Machine) Replace(ctx context.Context, token string) error {
	pause := func() bool { return proc.Pause(ctx, proc.PollEvery) }
	s, err := m.state().readSettled(pause)
	switch {
	case err == nil && s.Token != token: // another has taken its place
		return nil
	case err == nil && s.isAlive():
		return m.killSupervisor(ctx, s)
	}
	return m.KillAll(ctx)
}

// ReplaceOutdated is Replace for a supervisor that was started as another version of the program, unless that was
// installed later than this one. It fails, and the supervisor stays, if no other could be started: for lack of the
// program, for the QEMU that it follows, or for lack of room on the disk.
func (m Machine) ReplaceOutdated(ctx context.Context, token string) (replaced bool, err error) {
	s, err := m.state().readState()
	if err != nil {
		return false, nil //nolint:nilerr // There is none, or another one is being started.
	}
	installed, err := m.Program()
	switch {
	case err == nil && (s.Program == installed.Digest() || !installed.IsLatest()):
		return false, nil
	case err == nil:
		err = m.checkStart()
	}
	if err != nil {
		return false, fmt.Errorf("the supervisor is not replaced by this version of Drover: %w", err)
	}
	return true, m.Replace(ctx, token)
}

// checkStart checks that a supervisor could be started.
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
