// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
)

// StartRun begins a run. It records what it is about to do, starts QEMU with the guest still
// halted, and then resumes the guest.
func (inst *Instance) StartRun(ctx context.Context, spec driver.ServerSpec) error {
	if _, err := inst.Host.FindSupervisor(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	on, err := inst.FindPlatform(ctx)
	if err != nil {
		return err
	}
	release, err := inst.Host.Memory.Take(inst.ID, DemandOf(inst, spec, on.Accelerator), inst.Host.FindRoom)
	if err != nil {
		return ContractError(err)
	}
	defer release()
	files := &launch.Files{}
	defer files.Close()
	m, err := inst.prepareRun(ctx, spec, on, files)
	if err != nil {
		return err
	}
	before := inst.Record
	runLock, err := inst.ClaimRun()
	if err != nil {
		return ContractError(err)
	}
	defer func() { _ = runLock.Close() }()
	if err := inst.place().End(ctx); err != nil { // that of the last run
		return err
	}
	if err := inst.rotateLog(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	inst.Phase, inst.Run, inst.StartedAt = record.PhaseStarting, NewID(), inst.Host.Clock.Now()
	inst.Stop, inst.Settings, inst.Forwards = nil, record.SettingsOf(spec, inst.Root.Image.ImageSettings), m.Forwards
	inst.MachineType, inst.Accelerator = m.Type, m.Accel
	inst.planCPUGroup(spec.CPUMilli)
	if err := inst.Save(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	if err := inst.startMachine(ctx, m, files, spec.Ports, runLock); err != nil {
		_ = runLock.Close()
		return errors.Join(err, inst.undoStart(ctx, before))
	}
	return inst.FinishStart(ctx, spec)
}

// rotateLog renames the previous log before a run. A start that was interrupted has left
// its own.
func (inst *Instance) rotateLog() error {
	if inst.Phase == record.PhaseStarting {
		return inst.SetLogAside(machine.FailedLog)
	}
	return inst.SetLogAside(machine.OldLog)
}

// Platform is the part of a machine that no spec names.
type Platform struct {
	MachineType, Accelerator string
}

// FindPlatform finds what the next run is made on: a server keeps its machine type.
func (inst *Instance) FindPlatform(ctx context.Context) (Platform, error) {
	machineType, err := inst.Host.Program.MachineType(ctx, inst.MachineType)
	if err != nil {
		return Platform{}, ContractError(err)
	}
	accel, err := inst.Host.Accelerator.Choose(ctx)
	if !errors.Is(err, ctx.Err()) { // else there is no error, or only that of ctx
		err = ContractError(inst.Host.StateDir.Explain(err))
	}
	return Platform{machineType, accel}, err
}

// prepareRun gathers what a run needs, and opens the files that QEMU is to get.
func (inst *Instance) prepareRun(ctx context.Context, spec driver.ServerSpec, on Platform, files *launch.Files) (launch.Config, error) {
	release, err := inst.Host.Images.Hold()
	if err != nil {
		return launch.Config{}, err
	}
	defer release()
	volumes, err := inst.prepareVolumes(spec, files)
	if err != nil {
		return launch.Config{}, err
	}
	kernel, err := inst.Host.Disks.OpenKernel(spec, files)
	if err != nil {
		return launch.Config{}, err
	}
	seed, err := inst.AddSeed(seedOf(spec), files)
	if err != nil {
		return launch.Config{}, inst.Host.StateDir.Explain(err)
	}
	forwards, err := hostports.ChooseForwards(ctx, spec.Ports, inst.Forwards, inst.Host.ChoosePort)
	if err != nil {
		return launch.Config{}, err
	}
	root, err := inst.prepareRoot(spec, files)
	if err != nil {
		return launch.Config{}, err
	}
	return launch.Config{
		UUID: string(inst.UID), ID: inst.ID, Type: on.MachineType, Accel: on.Accelerator, CPUs: wholeCPUs(spec.CPUMilli), MemoryBytes: spec.MemoryBytes,
		Root: root, Volumes: volumes, Kernel: kernel, Forwards: forwards, SeedFD: seed,
	}, nil
}

// startMachine starts QEMU. Another process may take a chosen host port before QEMU has it,
// such as a machine that is started at the same time. Then it chooses another port and tries
// again.
func (inst *Instance) startMachine(ctx context.Context, m launch.Config, files *launch.Files, ports []driver.Port, runLock *os.File) (err error) {
	if m.AgentFD, err = inst.AddAgent(files); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	for try := 1; ; try++ {
		err := inst.Start(ctx, inst.Host.Program, m, files, runLock)
		ended, ok := errors.AsType[*machine.StartError](err)
		if !ok || ended.Taken < 0 {
			return ContractError(err)
		}
		n := ended.Taken
		if !m.Forwards[n].Chosen || try == hostports.MaxTries {
			return hostports.ConflictError(n, ports[n], m.Forwards[n], errors.New(ended.Output))
		}
		if m.Forwards, err = hostports.ChooseForwards(ctx, ports, m.Forwards, inst.Host.ChoosePort); err != nil {
			return err
		}
		inst.Forwards = m.Forwards
		if err := inst.Save(); err != nil {
			return inst.Host.StateDir.Explain(err)
		}
	}
}

// undoStart restores a server whose QEMU did not come up to what it was before.
func (inst *Instance) undoStart(ctx context.Context, before record.Record) error {
	if err := inst.Kill(ctx); err != nil {
		return err
	}
	inst.Host.RemoveGroup(ctx, inst.CPUGroup)
	inst.Record = before
	return errors.Join(inst.SetLogAside(machine.FailedLog), inst.Save())
}

// FinishStart resumes the guest of a QEMU that is up, whichever process started it. It
// does so last: if the process is killed before, the server is found paused, and the next
// leader resumes it.
func (inst *Instance) FinishStart(ctx context.Context, spec driver.ServerSpec) error {
	if err := inst.GrowDisks(ctx, spec); err != nil {
		return err
	}
	inst.limitCPU(ctx)
	inst.Host.RemoveExits(inst.UID, inst.Run)
	inst.Phase = record.PhaseOn
	if err := inst.Save(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	if spec.Power == driver.PowerPaused {
		return nil
	}
	// Notify first, so that other processes see to its supervisor even if this leader stops
	// right after.
	inst.Host.Notify(inst.UID)
	return inst.call(ctx, "start", func(ctx context.Context, c *control.Client) error { return c.Start(ctx) })
}

// planCPUGroup sets where a run's control group will be, if its CPUs are not whole.
func (inst *Instance) planCPUGroup(cpuMilli int64) {
	inst.CPUGroup, inst.CPUNote = "", ""
	if cpuMilli%1000 == 0 {
		return
	}
	g, err := inst.Host.FindGroups()
	if err != nil {
		inst.noteWholeCPUs(cpuMilli, err)
		return
	}
	inst.CPUGroup = g.GroupPath(string(inst.UID))
}

// limitCPU limits a QEMU to its fraction of a CPU. Where that is not possible the QEMU
// keeps the whole CPU, and the server's note says so.
func (inst *Instance) limitCPU(ctx context.Context) {
	if inst.CPUGroup == "" {
		return
	}
	g, err := inst.Host.FindGroups()
	if err == nil {
		err = g.LimitCPU(inst.CPUGroup, inst.Settings.CPUMilli, func() int { return inst.PID() })
	}
	if err != nil {
		inst.Host.RemoveGroup(ctx, inst.CPUGroup)
		inst.CPUGroup = ""
		inst.noteWholeCPUs(inst.Settings.CPUMilli, err)
	}
}

func (inst *Instance) noteWholeCPUs(cpuMilli int64, err error) {
	inst.CPUNote = fmt.Sprintf("spec.resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	inst.Host.Log.Info("Machine has whole CPUs: it could not be held to a fraction", "uid", inst.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// RemoveGroup removes the control group of a run that is over. If that fails, the remaining
// group limits no process.
func (h *Host) RemoveGroup(ctx context.Context, group string) {
	if err := cgroup.Remove(ctx, group); err != nil {
		h.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
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

// KillStrays ends QEMUs of a UID that do not hold its run lock: one that has not quite ended,
// or that lost its directory or the lock in it, as by restoring a backup. The caller knows that
// no QEMU holds the lock.
func (h *Host) KillStrays(ctx context.Context, uid types.UID) error {
	lost, err := h.lostMachine(uid)
	if err != nil {
		return err
	}
	return lost.KillStrays(ctx, func(pid int) (onKilled func()) {
		h.Log.Info("Killing a QEMU that does not hold its run lock", "uid", uid, "pid", pid)
		group := cgroup.GroupOf(pid, string(uid))
		return func() { h.RemoveGroup(ctx, group) }
	})
}

// EndOthers is KillStrays before a start, which a QEMU of the UID in another folder prevents. That
// may be another engine's, so it is not ended.
func (h *Host) EndOthers(ctx context.Context, uid types.UID) error {
	if err := h.KillStrays(ctx, uid); err != nil {
		return err
	}
	lost, err := h.lostMachine(uid)
	if err != nil {
		return err
	}
	if pid, dir := lost.FindElsewhere(); pid != 0 {
		return driver.Errorf(driver.ErrRetry, "a QEMU of this UID runs in the folder %s, process %d: a second one would be its double; end that process, or put that folder back in the place of %s", dir, pid, lost.Path)
	}
	return nil
}

// lostMachine returns the machine of a UID whose folder may be missing.
func (h *Host) lostMachine(uid types.UID) (machine.Machine, error) {
	// The kernel reports a path without symbolic links.
	vms, err := filepath.EvalSymlinks(h.StateDir.Path(VMsDir))
	if err != nil {
		return machine.Machine{}, h.StateDir.Explain(err)
	}
	return machine.Machine{Path: filepath.Join(vms, string(uid)), UUID: string(uid)}, nil
}
