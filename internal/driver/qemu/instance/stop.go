// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"time"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// writesWithin is how long a guest that waited for its disk is watched after it is
	// resumed. QEMU retries the write at once, however slow the guest is.
	writesWithin = 500 * time.Millisecond
)

// ResumeGuest resumes a guest. One that a disk error paused retries the same request, and
// whether that works shows at once. Without that check it would be resumed again and
// again.
func (inst *Instance) ResumeGuest(ctx context.Context) error {
	if inst.RunState != machine.StatusIOError {
		return inst.Execute(ctx, "cont", nil, nil)
	}
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Dial(bounded, machine.ControlSocket, inst.recordDiskEvent)
	if err != nil {
		return err
	}
	defer c.Close()
	if at, ok := inst.Host.DiskResumes.Load(inst.Path); ok && inst.Host.Clock.Now().Sub(at) < machine.ResumeAgain {
		return inst.findDiskFault(bounded, c)
	}
	if err := c.Execute(bounded, "cont", nil, nil); err != nil {
		return err
	}
	watched, stop := context.WithTimeout(bounded, writesWithin)
	defer stop()
	for proc.Pause(watched, 4*proc.PollEvery) {
		if status, err := machine.QueryStatus(watched, c); err == nil && status == machine.StatusIOError {
			return inst.findDiskFault(bounded, c)
		}
	}
	inst.Host.DiskResumes.Store(inst.Path, inst.Host.Clock.Now())
	return nil
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
		return false, inst.forceStop(ctx)
	}
	if inst.Stop == nil || !inst.Stop.By.Equal(now.By) {
		inst.Stop = &now
		if err := inst.Save(); err != nil {
			return true, inst.Host.StateDir.Explain(err)
		}
	}
	return true, inst.pressPowerButton(ctx)
}

// pressPowerButton presses the power button if machine.PressEvery has passed. A paused guest is resumed,
// since it would not notice the button.
func (inst *Instance) pressPowerButton(ctx context.Context) error {
	if !inst.ClaimPowerPress() {
		return nil
	}
	point := crashpoint.Begin("QMP system_powerdown", inst.UUID)
	err := inst.Control(ctx, func(ctx context.Context, c *qmp.Client) error {
		return point.Inject(func(ctx context.Context) error { return machine.PowerDown(ctx, c, inst.IsPaused()) })(ctx)
	})
	point.End()
	return err
}

// forceStop ends a run that the guest did not end, even where that cannot be recorded.
func (inst *Instance) forceStop(ctx context.Context) error {
	_, _ = inst.RecordExit(driver.Exit{Code: CodeKilled, Reason: machine.EndForced, At: inst.Host.Clock.Now()})
	return inst.Quit(ctx)
}

// QuitEnded ends a QEMU whose guest has ended. Where the exit is not recorded, QEMU is left,
// since only it holds how the guest ended.
func (inst *Instance) QuitEnded(ctx context.Context) error {
	if inst.ExitErr != nil {
		return inst.ExitErr
	}
	inst.Host.PowerPresses.Delete(inst.UID)
	return inst.Quit(ctx)
}

// GracePeriod returns how long the guest has to power off.
func (inst *Instance) GracePeriod() time.Duration {
	switch {
	case inst.RunState == machine.StatusPrelaunch:
		return 0 // it has not run yet
	case inst.ID == "": // the record cannot be read
		return defaultGrace
	}
	return time.Duration(inst.GraceSeconds) * time.Second
}

const defaultGrace = 30 * time.Second
