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
	// ListQueryWithin bounds the query of one supervisor among many, so that those which do not
	// answer do not delay the report of the others. One whose QEMU is silent says so after a second.
	ListQueryWithin = 3 * time.Second / 2
	// GoneWithin is how long a QEMU that closed the connection may take to be gone.
	GoneWithin = 500 * time.Millisecond
)

// Observe observes a server. It records an exit that it finds and that is not recorded
// yet. It fails where there is no server, where ctx is done or the process cannot open
// any file. It fails with a brokenError where something of the server cannot be read, and
// then still returns what is known.
func (inst *Instance) Observe(ctx context.Context) (*Instance, error) {
	return inst.ObserveWithin(ctx, machine.CommandWithin)
}

// ObserveWithin is Observe with a limit on the wait for QEMU's answer.
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
	if s.observed, err = s.Calls().observeQEMU(ctx, within); err != nil {
		return s, err
	}
	if err := s.observeExit(ctx); err != nil || s.On {
		return s, err
	}
	// A server that was removed meanwhile leaves nothing, not even how it ended.
	_, err = os.Lstat(inst.Machine.Path)
	if errors.Is(err, fs.ErrNotExist) {
		inst.Host.Exits.RemoveAll(s.UID, "")
		return s, fs.ErrNotExist
	}
	return s, wrapBroken("repair "+inst.Machine.Path, err)
}

// observeExit finds how the run ended. It continues with an exit that cannot be recorded:
// a full disk must not prevent a server from being observed or removed.
func (inst *Instance) observeExit(ctx context.Context) error {
	if inst.Phase != record.PhaseOn {
		return nil // no guest was resumed: the previous run's exit is not this one's
	}
	if inst.Retained {
		return nil // no caller asks for it, and nothing would remove the record of it
	}
	exit, ok := exits.OfState(inst.RunState)
	if inst.On && !ok {
		return nil
	}
	if !inst.On {
		exit = driver.Exit{Code: exits.CodeKilled, Reason: exits.ReasonKilled}
		if err := inst.Supervisor().End(ctx); err != nil { // which may know more
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
	case inst.On: // its supervisor is about to record how, and to make QEMU quit
		inst.Exit = &exit
	default:
		exit.At = inst.Host.Clock.Now()
		exit, _ = run.RecordExit(exit) // which logs why it could not
		inst.Exit = &exit
	}
	if inst.Guest == nil {
		return nil
	}
	return wrapBroken("repair or remove "+run.ResultFile(), run.AddResult(inst.Exit))
}
