// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// writesWithin is how long a guest that waited for its disk is watched after it is
	// resumed. QEMU retries the write at once, however slow the guest is.
	writesWithin = 500 * time.Millisecond
	// resumeAgain is the minimum time between two resumes of a guest that its disk pauses
	// again. A disk that takes a while to fail must not have the guest resumed in a loop.
	resumeAgain = 10 * time.Second
	// pressEvery is the interval between two presses of the power button, for a guest that
	// was not ready for the first.
	pressEvery = 2 * time.Second
)

// resumeGuest resumes a guest. One that a disk error paused retries the same request, and
// whether that works shows at once. Without that check it would be resumed again and
// again.
func (inst *instance) resumeGuest(ctx context.Context) error {
	if inst.status != machine.StatusIOError {
		return inst.Execute(ctx, "cont", nil, nil)
	}
	asked, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Dial(asked, machine.ControlSocket, inst.recordDiskEvent)
	if err != nil {
		return err
	}
	defer c.Close()
	if at, ok := inst.driver.diskResumes.Load(inst.Path); ok && inst.driver.Clock.Now().Sub(at) < resumeAgain {
		return inst.findDiskFault(asked, c)
	}
	if err := c.Execute(asked, "cont", nil, nil); err != nil {
		return err
	}
	looked, stop := context.WithTimeout(asked, writesWithin)
	defer stop()
	for proc.Pause(looked, 4*proc.PollEvery) {
		if status, err := machine.QueryStatus(looked, c); err == nil && status == machine.StatusIOError {
			return inst.findDiskFault(asked, c)
		}
	}
	inst.driver.diskResumes.Store(inst.Path, inst.driver.Clock.Now())
	return nil
}

// prepareRestart delays a stop before a restart until the next run has what it needs. Else
// the guest would be off while an image is fetched, and for good where something cannot
// be had.
func (inst *instance) prepareRestart(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	if inst.Stop != nil || spec.Power == driver.PowerOff {
		return false, nil
	}
	if waits, err := inst.driver.fetchImages(ctx, inst, spec); waits || err != nil {
		return waits, err
	}
	if err := inst.driver.checkImages(inst, spec); err != nil {
		return false, err
	}
	if err := hostports.CheckForwards(ctx, spec.Ports, inst.Forwards, inst.driver.choose); err != nil {
		return false, err
	}
	on, err := inst.platformOf(ctx)
	if err != nil {
		return false, err
	}
	want := demandOf(inst, spec, on.accel)
	want.Freed = inst.Settings.MemoryBytes + memory.OverheadOf(inst.accelerator())
	return false, machineError(inst.driver.room.Check(want, inst.driver.hostMemory))
}

// stopRun presses the power button, and ends the run when StopBy has passed. A guest that
// was not resumed yet has nothing to shut down, and its start may be one that cannot be
// finished.
func (inst *instance) stopRun(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	if inst.Phase == phaseStarting {
		return false, inst.Quit(ctx)
	}
	now := stop{By: spec.StopBy}
	if inst.Stop != nil && spec.Power != driver.PowerOff && spec.RestartRun != inst.Run {
		now.By = inst.Stop.By
	}
	if !now.By.IsZero() && !inst.driver.Clock.Now().Before(now.By) {
		return false, inst.forceStop(ctx)
	}
	if inst.Stop == nil || !inst.Stop.By.Equal(now.By) {
		inst.Stop = &now
		if err := inst.save(); err != nil {
			return true, inst.driver.dir.Explain(err)
		}
	}
	return true, inst.pressPowerButton(ctx)
}

// pressPowerButton presses the power button if pressEvery has passed. A paused guest is resumed,
// since it would not notice the button.
func (inst *instance) pressPowerButton(ctx context.Context) error {
	if !inst.claimPowerPress() {
		return nil
	}
	return inst.Control(ctx, func(ctx context.Context, c *qmp.Client) error { return machine.PowerDown(ctx, c, inst.isPaused()) })
}

// forceStop ends a run that the guest did not end, even where that cannot be recorded.
func (inst *instance) forceStop(ctx context.Context) error {
	_, _ = inst.recordExit(driver.Exit{Code: codeKilled, Reason: "Forced", At: inst.driver.Clock.Now()})
	return inst.Quit(ctx)
}

// quitEnded ends a QEMU whose guest has ended. Where the exit is not recorded, QEMU is left,
// since only it holds how the guest ended.
func (inst *instance) quitEnded(ctx context.Context) error {
	if inst.exitErr != nil {
		return inst.exitErr
	}
	inst.driver.powerPresses.Delete(inst.UID)
	return inst.Quit(ctx)
}
