// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
)

const (
	// ListQueryWithin bounds a query of one supervisor while a list waits for all of them. A supervisor
	// whose QEMU does not answer reports that after a second.
	ListQueryWithin = 3 * time.Second / 2
	// GoneWithin is how long a QEMU that closed the connection may take to exit.
	GoneWithin = 500 * time.Millisecond
)

// Observe returns a server with its record, its state, and its exit if its run has ended. It
// records an exit that is not recorded yet. It fails if the server does not exist, ctx is done,
// or the process has run out of file descriptors. If a file of the server cannot be read, it
// returns a brokenError and the server with the fields that are known.
func (inst *Instance) Observe(ctx context.Context) (*Instance, error) {
	return inst.ObserveWithin(ctx, machine.CommandWithin)
}

// ObserveWithin does the same as Observe, with a limit on the wait for the supervisor's answer.
func (inst *Instance) ObserveWithin(ctx context.Context, within time.Duration) (s *Instance, err error) {
	defer func() {
		if IsBroken(err) {
			s.Broken = err
		}
	}()
	s, err = inst.Load()
	if IsBroken(err) {
		var cause error
		if s.On, cause = isOn(s.Machine); cause != nil && !IsBroken(cause) {
			return s, cause
		}
		s.Retained = IsRetained(inst.Machine.Path)
	}
	if err != nil {
		return s, err
	}
	if s.observed, err = s.SupervisorCalls().observeQEMU(ctx, within); err != nil {
		return s, err
	}
	s.isBooting = isBooting(s)
	if err := s.observeExit(ctx); err != nil || s.On {
		return s, err
	}
	// If another process has removed the server, the exit that was just recorded has to go too.
	_, err = os.Lstat(inst.Machine.Path)
	if errors.Is(err, fs.ErrNotExist) {
		inst.Host.Exits.RemoveAll(s.UID, "")
		return s, fs.ErrNotExist
	}
	return s, wrapBroken("repair "+inst.Machine.Path, err)
}

// isBooting reports whether the guest of a container image runs, and has not reported the start of its command.
func isBooting(inst *Instance) bool {
	if inst.Phase != record.PhaseOn || !inst.On || inst.Guest == nil {
		return false
	}
	hasStarted, err := inst.ExitRecord().HasStarted()
	return err == nil && !hasStarted
}

// observeExit finds how the run ended, and records it. It ignores an error of the recording, since
// a full disk must not prevent a server from being observed or removed.
func (inst *Instance) observeExit(ctx context.Context) error {
	if inst.Phase != record.PhaseOn {
		return nil // this run has not begun, and the recorded exit is the previous run's
	}
	if inst.Retained {
		return nil // no caller asks for the exit, and nothing would ever remove its record
	}
	exit, ok := exits.OfState(inst.RunState)
	if inst.On && !ok {
		return nil
	}
	if !inst.On {
		exit = driver.Exit{Code: exits.CodeKilled, Reason: exits.ReasonKilled}
		if err := inst.Supervisor().End(ctx); err != nil { // the supervisor may record a better reason as it ends
			return wrapBroken("repair "+inst.Machine.Path, err)
		}
	}
	run := inst.ExitRecord()
	known, err := run.ReadExit()
	if err != nil {
		return wrapBroken("repair or remove "+run.File(), err)
	}
	switch inst.Exit = known; {
	case known != nil:
	case inst.On: // the supervisor is about to record the exit, and to make QEMU quit
		inst.Exit = &exit
	default:
		exit.At = inst.Host.Clock.Now()
		exit, _ = run.RecordExit(exit) // logs its error
		inst.Exit = &exit
	}
	if inst.Guest == nil {
		return nil
	}
	return wrapBroken("repair or remove "+run.ResultFile(), run.AddResult(inst.Exit))
}
