// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"io/fs"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

const (
	// listQueryWithin bounds the query of one QEMU among many, so that those which do not
	// answer do not delay the report of the others.
	listQueryWithin = time.Second
	// goneWithin is how long a QEMU that closed the connection may take to be gone.
	goneWithin = 500 * time.Millisecond
)

// observe observes a server. It records an exit that it finds and that is not recorded
// yet. It fails where there is no server, where ctx is done or the process cannot open
// any file. It fails with a brokenError where something of the server cannot be read, and
// then still returns what is known.
func (inst *instance) observe(ctx context.Context) (*instance, error) {
	return inst.observeWithin(ctx, machine.CommandWithin)
}

// observeWithin is observe with a limit on the wait for QEMU's answer.
func (inst *instance) observeWithin(ctx context.Context, within time.Duration) (*instance, error) {
	s, err := inst.observeState(ctx, within)
	if isBroken(err) {
		s.broken = err
	}
	return s, err
}

// observeState reads the record, queries QEMU and finds how the run ended.
func (inst *instance) observeState(ctx context.Context, within time.Duration) (*instance, error) {
	s, err := inst.load()
	if isBroken(err) {
		return inst.observeUnreadable(err)
	}
	if err != nil {
		return s, err
	}
	if err := s.queryStatus(ctx, within); err != nil {
		return s, err
	}
	s.observeDiskFault(ctx)
	if err := s.observeExit(); err != nil || s.on {
		return s, err
	}
	// A server that was removed meanwhile leaves nothing, not even how it ended.
	there, err := inst.hasDirectory()
	if !there && err == nil {
		inst.driver.removeExits(s.UID)
		return s, fs.ErrNotExist
	}
	return s, wrapBroken("repair "+inst.Path, err)
}

// observeUnreadable returns what is known of a server whose record cannot be read.
func (inst *instance) observeUnreadable(cause error) (*instance, error) {
	s := inst.driver.instanceAt(inst.Path)
	s.Retained = filepath.Base(filepath.Dir(inst.Path)) == retainedDir
	if err := s.observeRunning(); err != nil && !isBroken(err) {
		return s, err
	}
	return s, cause
}

// observeRunning finds out whether QEMU runs. Where that cannot be determined, the server
// counts as on, so that it is never wrongly reported as off.
func (inst *instance) observeRunning() error {
	on, err := inst.IsRunning()
	inst.on = on || err != nil
	return wrapBroken("repair "+inst.File(machine.RunLockFile), err)
}

// queryStatus finds out whether QEMU runs, and queries its run state.
func (inst *instance) queryStatus(ctx context.Context, within time.Duration) error {
	if err := inst.observeRunning(); err != nil || !inst.on {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	inst.status, inst.silence = inst.Status(asked)
	if inst.silence == nil || ctx.Err() != nil || asked.Err() != nil {
		return ctx.Err()
	}
	// A QEMU that closes the connection may be about to end.
	if inst.WaitStopped(ctx, goneWithin) == nil {
		inst.on, inst.silence = false, nil
	}
	return ctx.Err()
}

// observeExit finds how the run ended. It continues with an exit that cannot be recorded:
// a full disk must not prevent a server from being observed or removed.
func (inst *instance) observeExit() error {
	if inst.Phase != phaseOn {
		return nil // no guest was resumed: the previous run's exit is not this one's
	}
	if inst.Retained {
		return nil // no caller asks for it, and nothing would remove the record of it
	}
	exit, ok := exitsByStatus[inst.status]
	if inst.on && !ok {
		return nil
	}
	if !inst.on {
		exit = driver.Exit{Code: codeKilled, Reason: reasonKilled}
	}
	known, err := inst.readExit()
	if err != nil {
		return wrapBroken("repair or remove "+inst.exitFile(), err)
	}
	if known == nil {
		exit.At = inst.driver.Clock.Now()
		exit, inst.exitErr = inst.recordExit(exit)
		known = &exit
	}
	inst.exit = known
	return nil
}

// observeDiskFault finds the disk error that has paused a guest.
func (inst *instance) observeDiskFault(ctx context.Context) {
	if inst.status != machine.StatusIOError {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listQueryWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		inst.fault = machineError(machine.DiskFault{}.Explain())
		return
	}
	defer c.Close()
	inst.fault = inst.findDiskFault(ctx, c)
}
