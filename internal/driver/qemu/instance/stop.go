// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
)

// ResumeGuest resumes the guest. One that a disk error paused is resumed by the supervisor, again and again.
func (inst *Instance) ResumeGuest(ctx context.Context) error {
	switch inst.RunState {
	case machine.StatusIOError:
		return inst.fault
	case machine.StatusPrelaunch:
		return inst.Calls().startGuest(ctx)
	}
	return inst.Calls().resumeGuest(ctx)
}

// StopRun presses the power button, and ends the run when StopBy has passed. A guest that
// was not resumed yet has nothing to shut down, and its start may be one that cannot be
// finished.
func (inst *Instance) StopRun(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	if inst.Phase == record.PhaseStarting {
		return false, inst.Quit(ctx)
	}
	now := record.Stop{By: spec.StopBy}
	if inst.Stop != nil && spec.Power != driver.PowerOff && spec.RestartRun != inst.Run {
		now.By = inst.Stop.By
	}
	if !now.By.IsZero() && !inst.Host.Clock.Now().Before(now.By) {
		// Even where that cannot be recorded.
		_, _ = inst.ExitRecord().RecordExit(driver.Exit{Code: exits.CodeKilled, Reason: machine.EndForced, At: inst.Host.Clock.Now()})
		return false, inst.Quit(ctx)
	}
	var unrecorded error
	if inst.Stop == nil || !inst.Stop.By.Equal(now.By) {
		inst.Stop = &now
		unrecorded = inst.Host.StateDir.Explain(inst.Save())
	}
	id, within := stopOf(now.By, inst.Host.Clock.Now())
	if spec.Power != driver.PowerOff && spec.RestartRun == inst.Run {
		id = inst.Run // its time begins once, also where that is not recorded and each try has a later end
	}
	return true, cmp.Or(inst.Calls().pressButton(ctx, id, within), unrecorded) // a guest can be stopped on a full disk, too
}

// stopOf returns the ID of a stop, and the rest of its time; 0 means for ever.
func stopOf(deadline, now time.Time) (id string, within time.Duration) {
	if deadline.IsZero() {
		return "0", 0
	}
	return strconv.FormatInt(deadline.UnixNano(), 10), max(time.Millisecond, deadline.Sub(now))
}

// Quit ends QEMU: by its supervisor, so that its disks are consistent, or else by force.
func (inst *Instance) Quit(ctx context.Context) error {
	err := inst.Calls().quitQEMU(ctx)
	if err == nil && inst.Machine.WaitStopped(ctx, 2*machine.QuitWithin) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return inst.Machine.Quit(ctx)
}

// QuitEnded waits for the end of a QEMU whose guest has ended: its supervisor records how, and makes it quit. One that
// says so and does not is taken at its word, since nothing else would ever end that QEMU.
func (inst *Instance) QuitEnded(ctx context.Context) error {
	_, err := inst.Supervisor().Reach(ctx)
	if err == nil {
		err = inst.Machine.WaitStopped(ctx, machine.CommandWithin)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	exit := *inst.Exit
	if exit.At.IsZero() {
		exit.At = inst.Host.Clock.Now()
	}
	if _, err := inst.ExitRecord().RecordExit(exit); err != nil {
		return err
	}
	return inst.Machine.Quit(ctx)
}
