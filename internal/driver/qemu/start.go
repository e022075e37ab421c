// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
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
		return machineError(err)
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
		return machineError(err)
	}
	defer func() { _ = runLock.Close() }()
	if err := inst.rotateLog(); err != nil {
		return inst.driver.dir.Explain(err)
	}
	inst.driver.diskFaults.Delete(inst.Path)
	inst.Phase, inst.Run, inst.StartedAt = phaseStarting, newID(), inst.driver.Clock.Now()
	inst.Stop, inst.Settings, inst.Forwards = nil, settingsOf(spec, inst.Root.Image.ImageSettings), m.Forwards
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

// rotateLog renames the previous log before a run. A start that was interrupted has left
// its own.
func (inst *instance) rotateLog() error {
	if inst.Phase == phaseStarting {
		return inst.SetLogAside(machine.FailedLog)
	}
	return inst.SetLogAside(machine.OldLog)
}

// platform is the part of a machine that no spec names.
type platform struct {
	machineType, accel string
}

func (inst *instance) platformOf(ctx context.Context) (platform, error) {
	machineType, err := inst.driver.program.MachineType(ctx, inst.MachineType)
	if err != nil {
		return platform{}, machineError(err)
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
	kernel, err := inst.driver.disks.OpenKernel(spec, files)
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
			return machineError(err)
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
	// Notify first, so that other processes supervise the machine even if this leader stops
	// right after.
	inst.notifyWatchers()
	if err := inst.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	inst.removeOldRoot()
	return nil
}

// planCPUGroup sets where a run's control group will be, if its CPUs are not whole.
func (inst *instance) planCPUGroup(cpuMilli int64) {
	inst.CPUGroup, inst.CPUNote = "", ""
	if cpuMilli%1000 == 0 {
		return
	}
	g, err := inst.driver.groups()
	if err != nil {
		inst.noteWholeCPUs(cpuMilli, err)
		return
	}
	inst.CPUGroup = g.GroupPath(string(inst.UID))
}

// limitCPU limits a QEMU to its fraction of a CPU. Where that is not possible the QEMU
// keeps the whole CPU, and the server's note says so.
func (inst *instance) limitCPU(ctx context.Context) {
	if inst.CPUGroup == "" {
		return
	}
	g, err := inst.driver.groups()
	if err == nil {
		err = g.LimitCPU(inst.CPUGroup, inst.Settings.CPUMilli, func() int { return inst.PID() })
	}
	if err != nil {
		inst.driver.removeGroup(ctx, inst.CPUGroup)
		inst.CPUGroup = ""
		inst.noteWholeCPUs(inst.Settings.CPUMilli, err)
	}
}

func (inst *instance) noteWholeCPUs(cpuMilli int64, err error) {
	inst.CPUNote = fmt.Sprintf("resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	inst.driver.Log.Info("Machine has whole CPUs: it could not be held to a fraction", "uid", inst.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// removeGroup removes the control group of a run that is over. If that fails, the remaining
// group limits no process.
func (d *Driver) removeGroup(ctx context.Context, group string) {
	if err := cgroup.Remove(ctx, group); err != nil {
		d.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
	}
}

// seedOf returns what cloud-init reads. The instance ID is the server's UID, so cloud-init
// does its once-only tasks once per server.
func seedOf(spec driver.ServerSpec) machine.Seed {
	return machine.Seed{
		InstanceID: string(spec.UID), Hostname: spec.Name, SSHKeys: spec.SSHKeys,
		UserData: spec.UserData.Reveal(), NetworkData: spec.NetworkData.Reveal(),
	}
}

// killStrays ends machines of a UID whose directory, or the run lock in it, was removed
// while they ran, as by restoring a backup. The caller knows that no QEMU holds the lock.
func (d *Driver) killStrays(ctx context.Context, uid types.UID) error {
	// The kernel reports a path without symbolic links.
	vms, err := filepath.EvalSymlinks(d.dir.Path(vmsDir))
	if err != nil {
		return d.dir.Explain(err)
	}
	lost := machine.Machine{Path: filepath.Join(vms, string(uid)), UUID: string(uid)}
	return lost.KillStrays(ctx, func(pid int) (onKilled func()) {
		d.Log.Info("Machine ended: its directory, or the run lock in it, was removed", "uid", uid, "pid", pid)
		group := cgroup.GroupOf(pid, string(uid))
		return func() { d.removeGroup(ctx, group) }
	})
}
