// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/memory"
)

// maxSteps is more than the steps between any two states.
const maxSteps = 6

// Ensure creates a server or takes it to what the spec says.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	lock, err := d.beginChange(ctx, spec.Target)
	if err != nil {
		return driver.Server{}, err
	}
	defer lock.Release()
	s, err := d.findOrCreate(ctx, spec)
	if errors.Is(err, errFetching) {
		return d.fetches.PendingServer(spec.UID), nil
	}
	if err != nil {
		return driver.Server{}, err
	}
	d.recordGracePeriod(s, spec)
	return d.converge(ctx, s, spec)
}

// errFetching reports that a server cannot be created before its image is fetched.
var errFetching = errors.New("its image is being fetched")

// findOrCreate returns the server of the spec's UID. A stop comes before all checks, so
// that a spec which no machine can satisfy cannot keep one running.
func (d *Driver) findOrCreate(ctx context.Context, spec driver.ServerSpec) (*instance.Instance, error) {
	s, err := d.findServer(ctx, spec.Target)
	if err == nil {
		err = s.RenameImage(spec)
	}
	switch {
	case err == nil && spec.Power == driver.PowerOff:
		return s, nil
	case err == nil:
		return s, d.checkSpec(s, spec)
	case !errors.Is(err, driver.ErrNotFound) || spec.ID != "":
		return nil, err
	}
	if err := d.checkSpec(d.InstanceOf(spec.UID), spec); err != nil {
		return nil, err
	}
	if err := d.EndOthers(ctx, spec.UID); err != nil {
		return nil, err
	}
	if waits, err := d.fetchImages(ctx, d.InstanceOf(spec.UID), spec); waits || err != nil {
		return nil, cmp.Or(err, errFetching)
	}
	if err := d.createServer(ctx, spec); err != nil {
		return nil, d.StateDir.Explain(err)
	}
	d.Notify(spec.UID)
	return d.findServer(ctx, spec.Target)
}

// findServer observes the server of a UID, whose lock the caller holds. It also finishes a
// release that was interrupted.
func (d *Driver) findServer(ctx context.Context, t driver.Target) (*instance.Instance, error) {
	none := driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", t.UID)
	s, err := d.InstanceOf(t.UID).Observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err != nil:
		return nil, instance.ClassifyObserveError(err)
	case s.Retained:
		if err := s.MoveToRetained(); err != nil {
			return nil, d.StateDir.Explain(err)
		}
		return nil, none
	case s.ClusterID != d.ClusterID:
		return nil, driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the engine has a server of UID %s that is not this cluster's", t.UID))
	case t.ID != "" && t.ID != s.ID:
		return nil, driver.Errorf(driver.ErrNotFound, "the server of UID %s is %s, not %s", t.UID, s.ID, t.ID)
	}
	return s, nil
}

// createServer makes a server that is off. It makes all of it or nothing.
func (d *Driver) createServer(ctx context.Context, spec driver.ServerSpec) error {
	tmp, remove, err := d.StateDir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	inst := d.InstanceAt(filepath.Join(tmp, "vm"))
	if err := os.Mkdir(inst.Path, 0o700); err != nil {
		return err
	}
	release, err := d.Images.Hold()
	if err != nil {
		return err
	}
	defer release()
	requested := record.RequestedImage(spec, disks.ImageSettings{Source: d.Image})
	root, err := d.MakeRoot(inst.File(instance.RootDiskFile), spec, requested)
	if err != nil {
		return err
	}
	machineType, err := d.Program.MachineType(ctx, "")
	if err != nil {
		return instance.ContractError(err)
	}
	inst.Record = record.Record{
		Format: record.Format, ClusterID: d.ClusterID, MachineType: machineType, UID: spec.UID, ID: instance.NewID(), Namespace: spec.Namespace, Name: spec.Name, Epoch: spec.Epoch,
		GraceSeconds: graceSeconds(spec), Settings: record.SettingsOf(spec, requested), Root: root,
	}
	if err := inst.Save(); err != nil {
		return err
	}
	journal.Record(ctx, journal.ActionCreate, nil, snapshotOf(inst))
	return d.StateDir.Install(inst.Path, d.InstanceOf(spec.UID).Path)
}

// snapshotOf returns what the journal has of a server: its id alone, since a guest can end at
// any time.
func snapshotOf(inst *instance.Instance) *journal.Snapshot { return &journal.Snapshot{ID: inst.ID} }

// converge takes one step after the other until none is left, or until one has to wait
// for the guest.
func (d *Driver) converge(ctx context.Context, inst *instance.Instance, spec driver.ServerSpec) (driver.Server, error) {
	for range maxSteps {
		if !inst.On {
			d.RemoveGroup(ctx, inst.CPUGroup)
		}
		next := nextStep(inst, spec)
		if next == stepNone || next == stepStart && !d.mayStart(inst, spec) {
			return d.reportResult(inst, spec), nil
		}
		waits, err := d.applyStep(ctx, inst, next, spec)
		if err != nil {
			return driver.Server{}, fmt.Errorf("%s of server %s: %w", next, inst.UID, err)
		}
		inst.NotifyWatchers()
		if inst, err = inst.Observe(ctx); err != nil {
			return driver.Server{}, instance.ClassifyObserveError(err)
		}
		if waits && !hasEndedDuring(next, inst) {
			return d.reportResult(inst, spec), nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "the server %s changes as fast as Drover does", inst.UID)
}

// hasEndedDuring reports whether a step that waits for the guest has nothing to wait for any
// more. After a stop the QEMU may be gone already, since its supervisor makes it quit too.
func hasEndedDuring(s step, inst *instance.Instance) bool {
	return inst.IsEnded() || s == stepStop && !inst.On
}

// mayStart reports whether a start is requested. The exit of a run is reported before
// another run follows it, since the caller applies the restart policy. A caller that asks
// for a server to be on may not know yet that it has ended, before or during the call.
func (d *Driver) mayStart(inst *instance.Instance, spec driver.ServerSpec) bool {
	reported, ok := d.ReportedExits.Load(inst.UID)
	return inst.Exit == nil || inst.Run == spec.RestartRun || ok && inst.Run == reported
}

// reportResult adds what depends on the spec to the report of a server.
func (d *Driver) reportResult(inst *instance.Instance, spec driver.ServerSpec) driver.Server {
	out := inst.Report()
	out.Refused = d.refusedImage(inst, spec)
	if inst.IsAlive() && !spec.PowerOnly {
		want := record.SettingsOf(spec, inst.Settings.Image)
		if inst.Root.Size == 0 {
			want.Image = inst.ImageOf(spec)
		}
		out.Pending = pendingFields(inst.Settings, want)
	}
	out.Progress = cmp.Or(out.Progress, d.fetches.Progress(inst.UID))
	return out
}

// applyStep does one step; waits reports whether the next one has to wait for the guest.
func (d *Driver) applyStep(ctx context.Context, inst *instance.Instance, next step, spec driver.ServerSpec) (waits bool, err error) {
	journal.Record(ctx, journal.Action(next), snapshotOf(inst), snapshotOf(inst))
	switch next {
	case stepReap:
		return false, inst.QuitEnded(ctx)
	case stepStart:
		if waits, err := d.fetchImages(ctx, inst, spec); waits || err != nil {
			return waits, err
		}
		if err := d.EndOthers(ctx, inst.UID); err != nil {
			return false, err
		}
		if err := inst.StartRun(ctx, spec); err != nil {
			return false, err
		}
		d.fetches.ReleaseExcept(spec.UID)
		return false, nil
	case stepFinish:
		return false, inst.FinishStart(ctx, spec)
	case stepStop:
		if waits, err := d.prepareRestart(ctx, inst, spec); waits || err != nil {
			return waits, err
		}
		return inst.StopRun(ctx, spec)
	case stepGrow:
		return false, inst.GrowDisks(ctx, spec)
	case stepPause:
		return false, inst.Pause(ctx)
	case stepResume:
		return false, inst.ResumeGuest(ctx)
	case stepNone:
	}
	return true, nil
}

// step is one thing to do to a server.
type step string

const (
	stepNone   step = "none"
	stepReap   step = "reap"   // a QEMU whose guest has ended
	stepStart  step = "start"  // a new run
	stepFinish step = "finish" // a start that was interrupted
	stepStop   step = "stop"
	stepGrow   step = "growth of the disks"
	stepPause  step = "pause"
	stepResume step = "resume"
)

// nextStep returns the step that brings a server closer to its spec. A stop that was
// begun is completed even if the spec changes meanwhile, since a power button that was
// pressed cannot be released.
func nextStep(s *instance.Instance, spec driver.ServerSpec) step {
	switch {
	case s.IsEnded():
		return stepReap
	case !s.IsAlive() && spec.Power == driver.PowerOff:
		return stepNone
	case !s.IsAlive():
		return stepStart
	case s.Stop != nil, spec.Power == driver.PowerOff, spec.RestartRun != "" && s.Run == spec.RestartRun:
		return stepStop
	case s.Phase == record.PhaseStarting:
		return stepFinish
	case len(s.SizesToGrow(spec)) > 0:
		return stepGrow
	case spec.Power == driver.PowerPaused && !s.IsPaused():
		return stepPause
	case spec.Power == driver.PowerOn && s.IsPaused():
		return stepResume
	}
	return stepNone
}

// prepareRestart delays a stop before a restart until the next run has what it needs. Else
// the guest would be off while an image is fetched, and for good where something cannot
// be had.
func (d *Driver) prepareRestart(ctx context.Context, inst *instance.Instance, spec driver.ServerSpec) (waits bool, err error) {
	if inst.Stop != nil || spec.Power == driver.PowerOff {
		return false, nil
	}
	if waits, err := d.fetchImages(ctx, inst, spec); waits || err != nil {
		return waits, err
	}
	if err := d.checkImages(inst, spec); err != nil {
		return false, err
	}
	if err := hostports.CheckForwards(ctx, spec.Ports, inst.Forwards, d.ChoosePort); err != nil {
		return false, err
	}
	on, err := inst.FindPlatform(ctx)
	if err != nil {
		return false, err
	}
	want := instance.DemandOf(inst, spec, on.Accelerator)
	want.Freed = inst.Settings.MemoryBytes + memory.OverheadOf(inst.Accelerator)
	return false, instance.ContractError(d.Memory.Check(want, d.FindRoom))
}

// refusedImage returns the image of a spec as refused if the root disk stands on another
// one. What the guest wrote is on top of that image, and unusable on top of any other.
func (d *Driver) refusedImage(inst *instance.Instance, spec driver.ServerSpec) *driver.Refused {
	requested := inst.ImageOf(spec)
	if inst.Root.Size == 0 || d.Disks.IsSame(inst.Root.Image, requested) {
		return nil
	}
	return &driver.Refused{Field: instance.RootField, Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image is %s: the root disk stands on %s and keeps it, with what the guest wrote: put that back, or delete the VirtualMachine, which removes its disks, and create it anew",
		requested.Describe(), inst.Root.Image.Describe())}
}
