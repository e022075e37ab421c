// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/output"
)

// StartRun begins a run. It records the run, starts QEMU with the guest still halted, and then
// resumes the guest.
func (inst *Instance) StartRun(ctx context.Context, spec driver.ServerSpec) error {
	if _, err := inst.Host.FindSupervisor(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	platform, err := inst.Host.FindPlatform(ctx, inst.MachineType)
	if err != nil {
		return err
	}
	release, err := inst.Host.Memory.Take(inst.ID, DemandOf(inst, spec, platform.Accelerator), inst.Host.FindRoom)
	if err != nil {
		return ContractError(err)
	}
	defer release()
	s := &start{inst: inst, host: inst.Host, spec: spec, files: &launch.Files{}}
	defer s.files.Close()
	defer func() { s.sockets.Close() }()
	if err := s.prepareRun(ctx, platform); err != nil {
		return err
	}
	before := inst.Record
	runLock, err := inst.Machine.ClaimRun()
	if err != nil {
		return ContractError(err)
	}
	defer func() { _ = runLock.Close() }()
	if err := inst.Supervisor().End(ctx); err != nil { // the last run's supervisor
		return err
	}
	if err := s.openOutput(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	if err := s.recordRun(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	if err := s.startMachine(ctx, runLock); err != nil {
		_ = runLock.Close()
		return errors.Join(err, s.restoreRecord(ctx, before))
	}
	return s.finishStart(ctx)
}

// FinishStart resumes the guest of a QEMU that is up. Another process may have started that QEMU.
func (inst *Instance) FinishStart(ctx context.Context, spec driver.ServerSpec) error {
	return (&start{inst: inst, host: inst.Host, spec: spec}).finishStart(ctx)
}

// start is the start of one run.
type start struct {
	inst *Instance
	host *Host
	spec driver.ServerSpec
	// machine is the machine to run, and files are the open files that QEMU inherits.
	machine launch.MachineConfig
	files   *launch.Files
	// forwards are the host ports of the run. sockets are the sockets of the ports that are newly opened.
	forwards []hostports.Forward
	sockets  hostports.Sockets
	// guest is for a run of a container image.
	guest record.Guest
}

// prepareRun makes missing disks, chooses the address and the host ports, and opens the files that QEMU inherits.
func (s *start) prepareRun(ctx context.Context, platform Platform) error {
	release, err := s.host.Images.Hold()
	if err != nil {
		return err
	}
	defer release()
	s.machine = launch.MachineConfig{
		ID: s.inst.Machine.Mark, UUID: s.inst.UUID, MAC: s.inst.MAC, Type: platform.MachineType, Accel: platform.Accelerator,
		CPUs: wholeCPUs(s.spec.CPUMilli), MemoryBytes: s.spec.MemoryBytes,
	}
	if s.inst.Address, err = s.host.Addresses.Take(s.inst.UID, s.inst.Address); err != nil {
		return s.host.StateDir.Explain(err)
	}
	if s.forwards, s.sockets, err = hostports.OpenForwards(ctx, s.spec.Ports, s.inst.Forwards, false, s.host.OpenPort); err != nil {
		return err
	}
	if s.machine.Root, err = s.prepareRoot(); err != nil {
		return err
	}
	isContainer := s.inst.Root.Image.IsContainer()
	if err := containerboot.CheckFields(s.spec, isContainer); err != nil {
		return err
	}
	if s.machine.Volumes, err = s.prepareVolumes(); err != nil {
		return err
	}
	if isContainer {
		return s.prepareGuest()
	}
	if s.machine.Kernel, err = s.host.Disks.OpenKernel(s.spec, s.files); err != nil {
		return err
	}
	s.machine.SeedFD, err = seedOf(s.spec).AddTo(s.files, s.inst.Machine)
	return s.host.StateDir.Explain(err)
}

// prepareGuest opens the files that a container image boots with, except its disk: the kernel, the image's root file
// system, and the configuration for Drover's program in the guest.
func (s *start) prepareGuest() (err error) {
	kernel, err := containerboot.OpenKernel(s.host.GuestDir, s.machine.Accel, s.files)
	if err != nil {
		return err
	}
	s.machine.Kernel, s.guest.Kernel = kernel.Kernel, kernel.Digest
	root, err := s.host.Disks.OpenRoot(s.inst.Root.Image)
	if err != nil {
		return err
	}
	s.machine.Guest = &launch.Guest{ImageFD: s.files.Add(root.File), ModulesFD: kernel.ModulesFD}
	s.guest.HealthCheck, s.guest.ExposedPorts = root.Config.HealthCheck, root.Config.ExposedPorts
	s.guest.Protocol = config.Version
	s.guest.Nonce = make([]byte, config.NonceBytes)
	_, _ = rand.Read(s.guest.Nonce) // never fails
	configFile, err := containerboot.Configure(s.spec, root.Config, s.inst.Edge().config(), s.guest.Nonce)
	if err != nil {
		return err
	}
	s.machine.Guest.ConfigFD = s.files.Add(configFile)
	filesDisk, err := containerboot.OpenFiles(s.spec)
	if filesDisk != nil {
		s.machine.Guest.FilesFD = s.files.Add(filesDisk)
	}
	return err
}

// prepareVolumes makes the volumes that do not exist yet. A volume that the spec no longer names
// keeps its file, in case the spec names the volume again.
func (s *start) prepareVolumes() ([]launch.Volume, error) {
	volumes := make([]launch.Volume, 0, len(s.spec.Volumes))
	for i, v := range s.spec.Volumes {
		file := VolumeFile(v.Name)
		if s.needsVolume(v) {
			err := s.makeDisk(file, func(path string) (disks.Disk, error) {
				return s.host.Disks.Make(path, WantedVolume(i, v))
			}, func(made disks.Disk) {
				all := map[string]disks.Disk{}
				maps.Copy(all, s.inst.Volumes)
				all[v.Name] = made
				s.inst.Volumes = all
			})
			if err != nil {
				return nil, s.host.StateDir.Explain(err)
			}
		}
		attached, err := s.host.Disks.Open(s.files, VolumeField(i), s.inst.Machine.File(file), s.inst.Volumes[v.Name], v.ReadOnly)
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, launch.Volume{Name: v.Name, Drive: *attached})
	}
	return volumes, nil
}

// needsVolume reports whether a volume has to be made: for the first time, or with a file system in place of a blank disk
// to which no guest has written.
func (s *start) needsVolume(v driver.Volume) bool {
	made, isMade := s.inst.Volumes[v.Name]
	isBlank := made.Template == "" && made.Image.Path == ""
	return !isMade || v.MountPath != "" && isBlank && disks.CheckUnwritten(s.inst.Machine.File(VolumeFile(v.Name))) == nil
}

// makeDisk makes a disk, moves it into place and then records it. When it returns, the record
// outlasts a power cut. Only then may a guest write to the disk, because a disk with data that is
// not in the record is never used.
func (s *start) makeDisk(file string, makeAt func(path string) (disks.Disk, error), setDisk func(disks.Disk)) error {
	tmp, remove, err := s.host.StateDir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	path := filepath.Join(tmp, file)
	made, err := makeAt(path)
	if err == nil {
		err = s.host.Disks.Keep(s.inst.Machine.Path, made)
	}
	if err != nil {
		return err
	}
	if err := s.placeDisk(path); err != nil {
		return err
	}
	setDisk(made)
	if err := s.inst.Save(); err != nil {
		return err
	}
	if err := s.host.StateDir.Sync(s.inst.Machine.Path); err != nil {
		return err
	}
	return s.host.Disks.KeepOnly(s.inst.Machine.Path, s.inst.Disks()...)
}

// placeDisk moves a new disk to the path that the record will name. It replaces an empty
// disk there, which an interrupted call has left. It does not replace a disk with data: the
// record does not name that disk, perhaps because an old record was restored.
func (s *start) placeDisk(made string) error {
	place := s.inst.Machine.File(filepath.Base(made))
	err := disks.CheckUnwritten(place)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return driver.Errorf(driver.ErrRetry, "disk %s is there, and %s does not name it: restore that file, or move the disk away: %w", place, RecordFile, err)
	}
	point := crashpoint.Begin("place", place)
	err = os.Rename(made, place)
	point.End()
	if err != nil {
		return err
	}
	return s.host.StateDir.Sync(s.inst.Machine.Path) // the record must not outlast its disk in a power cut
}

// seedOf returns the data for cloud-init. The instance ID is the server's UID, so that cloud-init
// does its per-instance tasks once per server.
func seedOf(spec driver.ServerSpec) machine.Seed {
	return machine.Seed{
		InstanceID: string(spec.UID), Hostname: spec.Name, SSHKeys: spec.SSHKeys,
		UserData: spec.UserData.Reveal(), NetworkData: spec.NetworkData.Reveal(),
	}
}

// prepareRoot makes the root disk if it does not exist, and opens it. An existing root disk
// stays, even if the spec names another image now, because it has the guest's data.
func (s *start) prepareRoot() (*launch.Drive, error) {
	if s.inst.NeedsRoot(s.spec) && !s.hasNewRoot() {
		if err := s.discardRoot(); err != nil {
			return nil, s.host.StateDir.Explain(err)
		}
		err := s.makeDisk(RootDiskFile, func(path string) (disks.Disk, error) {
			return s.host.MakeRoot(path, s.spec, s.inst.ImageOf(s.spec))
		}, func(made disks.Disk) { s.inst.Root = made })
		if err != nil {
			return nil, s.host.StateDir.Explain(err)
		}
	}
	if s.inst.Root.Size == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	return s.host.Disks.Open(s.files, RootField, s.inst.Machine.File(RootDiskFile), s.inst.Root, false)
}

// hasNewRoot reports whether the root disk exists, matches the spec, and was not written to by a guest yet.
func (s *start) hasNewRoot() bool {
	root := s.inst.Root
	return root.Size > 0 && root.Size >= s.spec.RootDiskBytes && root.Image.Ref == s.inst.ImageOf(s.spec) &&
		disks.CheckUnwritten(s.inst.Machine.File(RootDiskFile)) == nil
}

// discardRoot removes the root disk that an ephemeral server had in its last run. The record changes only with the next disk.
func (s *start) discardRoot() error {
	if s.inst.Root.Size == 0 {
		return nil
	}
	err := s.host.StateDir.Discard(s.inst.Machine.File(RootDiskFile))
	if errors.Is(err, fs.ErrNotExist) { // removed by a start that was interrupted
		return nil
	}
	return err
}

// recordRun records the run that is about to begin, and renames the previous log: the log of a
// run, or of a start that was interrupted.
func (s *start) recordRun() error {
	inst, suffix := s.inst, machine.OldLog
	if inst.Phase == record.PhaseStarting {
		suffix = machine.FailedLog
	}
	if err := inst.Machine.SetLogAside(suffix); err != nil {
		return err
	}
	inst.Phase, inst.Run, inst.StartedAt = record.PhaseStarting, record.NewID(), s.host.Clock.Now()
	inst.Stop, inst.Settings = nil, record.SettingsOf(s.spec, inst.Root.Image.Ref)
	inst.Edge().setWanted(s.forwards)
	inst.MachineType, inst.Accelerator = s.machine.Type, s.machine.Accel
	if inst.Guest = nil; s.machine.Guest != nil {
		inst.Guest = &s.guest
	}
	inst.CPUGroup, inst.CPUNote = "", ""
	s.planGroup()
	return inst.Save()
}

// planGroup records the path of the run's control group, which makeGroup makes.
func (s *start) planGroup() {
	g, err := s.host.FindGroups()
	if err != nil {
		s.noteWholeCPUs(err)
		return
	}
	s.inst.CPUGroup = g.GroupPath(string(s.inst.UID))
}

// noteWholeCPUs sets the server's note to the reason why the machine cannot be limited to a fraction of a CPU. Whole CPUs
// need no group.
func (s *start) noteWholeCPUs(err error) {
	cpuMilli := s.inst.Settings.CPUMilli
	if cpuMilli%1000 == 0 {
		return
	}
	s.inst.CPUNote = fmt.Sprintf("spec.resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	s.host.Log.Info("Machine has whole CPUs: it could not be limited to a fraction", "uid", s.inst.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// startMachine starts QEMU and its supervisor.
func (s *start) startMachine(ctx context.Context, runLock *os.File) (err error) {
	if err := s.openResult(); err != nil {
		return err
	}
	m := s.machine
	if m.AgentFD, err = s.inst.Machine.AddAgent(s.files); err != nil {
		return s.host.StateDir.Explain(err)
	}
	_, err = s.inst.Machine.Start(ctx, s.host.Program, m, s.files, runLock, func() {
		// Other processes start a supervisor if this one is killed now.
		s.host.Notify(s.inst.UID)
		supervised := s.inst.Supervisor()
		supervised.Sockets = s.sockets
		_, _ = supervised.Reach(ctx) // starts the supervisor while QEMU starts; the next call finds out if that failed
	})
	return ContractError(err)
}

// openResult opens the file for the exit code, which the guest writes to as a disk. It allocates the file on the host now,
// since the exit code must not be lost if the host's disk is full when the guest ends.
func (s *start) openResult() error {
	if s.machine.Guest == nil {
		return nil
	}
	path := s.inst.ExitRecord().ResultFile()
	point := crashpoint.Begin("create", path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|unix.O_NOFOLLOW, 0o600) //nolint:gosec // in the driver's folder
	point.End()
	if err != nil {
		return s.host.StateDir.Explain(err)
	}
	if _, err := f.Write(make([]byte, config.ResultBytes)); err != nil {
		return s.host.StateDir.Explain(errors.Join(err, f.Close()))
	}
	s.machine.Guest.ResultFD = s.files.Add(f)
	return nil
}

// openOutput opens the files for the output of the image's command, and records where the output of this run begins.
func (s *start) openOutput() error {
	if s.machine.Guest == nil {
		return nil
	}
	files, begin, err := output.Create(s.inst.Machine.File)
	for stream, f := range files {
		s.machine.Guest.OutputFDs[stream] = s.files.Add(f)
	}
	s.guest.Output = &record.Output{Begin: begin}
	if last := s.inst.Guest; last != nil && last.Output != nil {
		s.guest.Output.Previous = &last.Output.Begin
		if s.inst.Phase == record.PhaseStarting { // the last run's start was interrupted, without any output
			s.guest.Output.Previous = last.Output.Previous
		}
	}
	return err
}

// restoreRecord restores the earlier record of a server whose QEMU did not come up.
func (s *start) restoreRecord(ctx context.Context, before record.Record) error {
	if err := s.inst.Machine.Kill(ctx); err != nil {
		return err
	}
	supervisor := s.inst.Supervisor()
	if err := supervisor.End(ctx); err != nil {
		return err
	}
	_ = os.Remove(supervisor.Record) // the end of a run that never began
	s.host.RemoveGroup(ctx, s.inst.CPUGroup)
	_ = os.Remove(s.inst.ExitRecord().ResultFile())
	s.inst.Record = before
	return errors.Join(s.inst.Machine.SetLogAside(machine.FailedLog), s.inst.Save())
}

// finishStart completes a start, and resumes the guest as the last step. If this process is killed
// before, the server looks paused, and the next leader completes the start.
func (s *start) finishStart(ctx context.Context) error {
	inst := s.inst
	if err := inst.GrowDisks(ctx, s.spec); err != nil {
		return err
	}
	if err := inst.Edge().servePorts(ctx, s.sockets); err != nil {
		return err
	}
	s.makeGroup(ctx)
	s.host.Exits.RemoveAll(inst.UID, inst.Run)
	inst.Phase = record.PhaseOn
	if err := inst.Save(); err != nil {
		return s.host.StateDir.Explain(err)
	}
	if s.spec.Power == driver.PowerPaused {
		return nil
	}
	// Notify first, so that other processes keep a supervisor running even if this process is
	// killed right after.
	s.host.Notify(inst.UID)
	return inst.SupervisorCalls().startGuest(ctx)
}

// makeGroup puts QEMU into the run's control group, which limits it to a fraction of a CPU. If that is not possible, QEMU
// keeps the whole CPU, and the server's note says why.
func (s *start) makeGroup(ctx context.Context) {
	inst := s.inst
	if inst.CPUGroup == "" {
		return
	}
	if err := addGroup(inst); err != nil {
		s.host.RemoveGroup(ctx, inst.CPUGroup)
		inst.CPUGroup = ""
		s.noteWholeCPUs(err)
	}
}

// addGroup makes the run's control group, if it is missing, and writes its settings.
func addGroup(inst *Instance) error {
	g, err := inst.Host.FindGroups()
	if err != nil {
		return err
	}
	return g.Add(inst.CPUGroup, inst.Settings.CPUMilli, inst.Machine.PID)
}

// LacksGroup reports whether the run's control group has lost its settings.
func LacksGroup(inst *Instance) bool {
	if inst.CPUGroup == "" || inst.Phase != record.PhaseOn {
		return false
	}
	g, err := inst.Host.FindGroups()
	return err == nil && g.LacksSettings(inst.CPUGroup, inst.Settings.CPUMilli)
}

// RestoreGroup writes the settings of the run's control group again.
func RestoreGroup(inst *Instance) error {
	if err := addGroup(inst); err != nil {
		return driver.Errorf(driver.ErrRetry, "its CPU time is not limited: %w", err)
	}
	return nil
}
