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

// ResumeGuest resumes the guest. If a disk error has paused the guest, it returns that error, and the supervisor retries.
func (inst *Instance) ResumeGuest(ctx context.Context) error {
	switch inst.RunState {
	case machine.StatusIOError:
		return inst.fault
	case machine.StatusPrelaunch:
		return inst.SupervisorCalls().startGuest(ctx)
	}
	return inst.SupervisorCalls().resumeGuest(ctx)
}

// StopRun presses the power button, or ends the run by force if StopBy has passed. It also ends
// the run by force if the guest was never resumed: it has nothing to shut down, and its start may
// never finish. waits is set if the guest is given time to shut down.
func (inst *Instance) StopRun(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	if inst.Phase == record.PhaseStarting {
		return false, inst.Quit(ctx)
	}
	stop := record.Stop{By: spec.StopBy}
	if inst.Stop != nil && spec.Power != driver.PowerOff && spec.RestartRun != inst.Run {
		stop.By = inst.Stop.By
	}
	if !stop.By.IsZero() && !inst.Host.Clock.Now().Before(stop.By) {
		// A full disk must not prevent the stop.
		_, _ = inst.ExitRecord().RecordExit(driver.Exit{Code: exits.CodeKilled, Reason: machine.EndForced, At: inst.Host.Clock.Now()})
		return false, inst.Quit(ctx)
	}
	var saveErr error
	if inst.Stop == nil || !inst.Stop.By.Equal(stop.By) {
		inst.Stop = &stop
		saveErr = inst.Host.StateDir.Explain(inst.Save())
	}
	id, timeout := stopIDAndTimeout(stop.By, inst.Host.Clock.Now())
	if spec.Power != driver.PowerOff && spec.RestartRun == inst.Run {
		id = inst.Run // the grace period starts only once, even if each retry passes a later StopBy
	}
	return true, cmp.Or(inst.SupervisorCalls().pressButton(ctx, id, timeout), saveErr) // press the button even on a full disk
}

// stopIDAndTimeout returns the ID of a stop, and the time until the stop is forced; 0 means never.
func stopIDAndTimeout(deadline, now time.Time) (id string, timeout time.Duration) {
	if deadline.IsZero() {
		return "0", 0
	}
	return strconv.FormatInt(deadline.UnixNano(), 10), max(time.Millisecond, deadline.Sub(now))
}

// Quit ends QEMU through its supervisor, so that its disks are consistent. If that fails, it ends QEMU by force.
func (inst *Instance) Quit(ctx context.Context) error {
	err := inst.SupervisorCalls().quitQEMU(ctx)
	if err == nil && inst.Machine.WaitStopped(ctx, 2*machine.QuitWithin) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return inst.Machine.Quit(ctx)
}

// FinishEndedRun waits until QEMU exits after its guest has ended: the supervisor records the exit and makes QEMU quit.
// If QEMU does not quit, FinishEndedRun records the exit that the supervisor has reported, and ends QEMU.
func (inst *Instance) FinishEndedRun(ctx context.Context) error {
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
