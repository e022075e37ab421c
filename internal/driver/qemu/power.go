// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"os"
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

// startRun begins a run. It records what it is about to do, starts QEMU with the guest still
// halted, and then resumes the guest.
func (inst *instance) startRun(ctx context.Context, spec driver.ServerSpec) error {
	on, err := inst.platformOf(ctx)
	if err != nil {
		return err
	}
	release, err := inst.driver.room.Take(inst.ID, demandOf(inst, spec, on.accel), inst.driver.hostMemory)
	if err != nil {
		return contractError(err)
	}
	defer release()
	files := &machine.Files{}
	defer files.Close()
	m, err := inst.prepareRun(ctx, spec, on, files)
	if err != nil {
		return err
	}
	before := inst.record
	runLock, err := inst.ClaimRun()
	if err != nil {
		return contractError(err)
	}
	defer func() { _ = runLock.Close() }()
	if err := inst.rotateLog(); err != nil {
		return inst.driver.dir.Explain(err)
	}
	inst.driver.diskFaults.Delete(inst.Path)
	inst.Phase, inst.Run, inst.StartedAt = phaseStarting, newID(), inst.driver.Clock.Now()
	inst.Stop, inst.Settings, inst.Forwards = nil, settingsOf(spec, inst.Root.Image.imageSettings), m.Forwards
	inst.MachineType, inst.Accelerator = m.Type, m.Accel
	inst.planCPUGroup(spec.CPUMilli)
	if err := inst.save(); err != nil {
		return inst.driver.dir.Explain(err)
	}
	if err := inst.startMachine(ctx, m, spec.Ports, runLock); err != nil {
		_ = runLock.Close()
		return errors.Join(err, inst.undoStart(ctx, before))
	}
	return inst.finishStart(ctx, spec)
}

// platform is the part of a machine that no spec names.
type platform struct {
	machineType, accel string
}

func (inst *instance) platformOf(ctx context.Context) (platform, error) {
	machineType, err := inst.driver.program.MachineType(ctx, inst.MachineType)
	if err != nil {
		return platform{}, contractError(err)
	}
	accel, err := inst.driver.accel.Choose(ctx)
	if !errors.Is(err, ctx.Err()) { // else there is no error, or only that of ctx
		err = inst.driver.dir.Explain(err)
	}
	return platform{machineType, accel}, err
}

// prepareRun gathers what a run needs, and opens the files that QEMU is to get.
func (inst *instance) prepareRun(ctx context.Context, spec driver.ServerSpec, on platform, files *machine.Files) (machine.Config, error) {
	release, err := inst.driver.images.Hold()
	if err != nil {
		return machine.Config{}, err
	}
	defer release()
	volumes, err := inst.prepareVolumes(spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	kernel, err := inst.driver.openKernel(spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	if err := inst.WriteSeed(seedOf(spec)); err != nil {
		return machine.Config{}, inst.driver.dir.Explain(err)
	}
	forwards, err := hostports.ChooseForwards(ctx, spec.Ports, inst.Forwards, inst.driver.choose)
	if err != nil {
		return machine.Config{}, err
	}
	root, err := inst.prepareRoot(spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	return machine.Config{
		UUID: string(inst.UID), ID: inst.ID, Type: on.machineType, Accel: on.accel, CPUs: wholeCPUs(spec.CPUMilli), MemoryBytes: spec.MemoryBytes,
		Root: root, Volumes: volumes, Kernel: kernel, Forwards: forwards, Files: files,
	}, nil
}

// startMachine starts QEMU. Another process may take a chosen host port before QEMU has it,
// such as a machine that is started at the same time. Then launch chooses another port.
func (inst *instance) startMachine(ctx context.Context, m machine.Config, ports []driver.Port, runLock *os.File) error {
	for try := 1; ; try++ {
		err := inst.Start(ctx, inst.driver.Binary, m, runLock)
		ended, ok := errors.AsType[*machine.StartError](err)
		if !ok || ended.Taken < 0 {
			return contractError(err)
		}
		n := ended.Taken
		if !m.Forwards[n].Chosen || try == hostports.MaxTries {
			return hostports.ConflictError(n, ports[n], m.Forwards[n], errors.New(ended.Output))
		}
		if m.Forwards, err = hostports.ChooseForwards(ctx, ports, m.Forwards, inst.driver.choose); err != nil {
			return err
		}
		inst.Forwards = m.Forwards
		if err := inst.save(); err != nil {
			return inst.driver.dir.Explain(err)
		}
	}
}

// undoStart restores a server whose QEMU did not come up to what it was before.
func (inst *instance) undoStart(ctx context.Context, before record) error {
	if err := inst.Kill(ctx); err != nil {
		return err
	}
	inst.driver.removeGroup(ctx, inst.CPUGroup)
	inst.record = before
	return errors.Join(inst.SetLogAside(machine.FailedLog), inst.save())
}

// finishStart resumes the guest of a QEMU that is up, whichever process started it. It
// does so last: if the process is killed before, the server is found paused, and the next
// leader resumes it.
func (inst *instance) finishStart(ctx context.Context, spec driver.ServerSpec) error {
	if err := inst.ProtectSockets(); err != nil {
		return err
	}
	if err := inst.growDisks(ctx, spec); err != nil {
		return err
	}
	inst.limitCPU(ctx)
	inst.driver.removeExits(inst.UID)
	inst.Phase = phaseOn
	if err := inst.save(); err != nil {
		return inst.driver.dir.Explain(err)
	}
	if spec.Power == driver.PowerPaused {
		return nil
	}
	// Notify first, so that other processes attend the machine even if this leader stops
	// right after.
	inst.driver.notify(inst.UID)
	if err := inst.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	inst.removeOldRoot()
	return nil
}

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
	if waits, err := inst.driver.fetching(ctx, inst, spec); waits || err != nil {
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
	return false, contractError(inst.driver.room.Check(want, inst.driver.hostMemory))
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

// quitEnded ends a QEMU whose guest has ended. Where the end is not recorded, QEMU stays,
// since only it holds how the guest ended.
func (inst *instance) quitEnded(ctx context.Context) error {
	if inst.exitErr != nil {
		return inst.exitErr
	}
	inst.driver.powerPresses.Delete(inst.UID)
	return inst.Quit(ctx)
}
