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
)

// maxSteps is more than the steps between any two states.
const maxSteps = 6

// Ensure creates a server or takes it to what the spec says.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := checkPower(spec); err != nil {
		return driver.Server{}, err
	}
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
	s.recordGracePeriod(spec)
	return s.converge(ctx, spec)
}

// errFetching reports that a server cannot be created before its image is fetched.
var errFetching = errors.New("its image is being fetched")

// findOrCreate returns the server of the spec's UID. A stop comes before all checks, so
// that a spec which no machine can satisfy cannot keep one running.
func (d *Driver) findOrCreate(ctx context.Context, spec driver.ServerSpec) (*instance, error) {
	s, err := d.findServer(ctx, spec.Target)
	if err == nil {
		err = s.settleRoot(ctx, spec)
	}
	switch {
	case err == nil && spec.Power == driver.PowerOff:
		return s, nil
	case err == nil:
		return s, s.checkSpec(spec)
	case !errors.Is(err, driver.ErrNotFound) || spec.ID != "":
		return nil, err
	}
	if err := d.instanceOf(spec.UID).checkSpec(spec); err != nil {
		return nil, err
	}
	if err := d.killStrays(ctx, spec.UID); err != nil {
		return nil, err
	}
	if waits, err := d.fetchImages(ctx, d.instanceOf(spec.UID), spec); waits || err != nil {
		return nil, cmp.Or(err, errFetching)
	}
	journal.Record(ctx, journal.ActionCreate, nil, nil)
	if err := d.createServer(ctx, spec); err != nil {
		return nil, d.dir.Explain(err)
	}
	d.notify(spec.UID)
	return d.findServer(ctx, spec.Target)
}

// findServer observes the server of a UID, whose lock the caller holds. It also finishes a
// release that was interrupted.
func (d *Driver) findServer(ctx context.Context, t driver.Target) (*instance, error) {
	none := driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", t.UID)
	s, err := d.instanceOf(t.UID).observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err != nil:
		return nil, classifyObserveError(err)
	case s.Retained:
		if err := s.moveToRetained(); err != nil {
			return nil, d.dir.Explain(err)
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
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	inst := d.instanceAt(filepath.Join(tmp, "vm"))
	if err := os.Mkdir(inst.Path, 0o700); err != nil {
		return err
	}
	release, err := d.images.Hold()
	if err != nil {
		return err
	}
	defer release()
	asked := imageOf(spec, disks.ImageSettings{Source: d.Image})
	root, err := d.makeRoot(inst.File(rootDiskFile), spec, asked)
	if err != nil {
		return err
	}
	machineType, err := d.program.MachineType(ctx, "")
	if err != nil {
		return machineError(err)
	}
	inst.record = record{
		ClusterID: d.ClusterID, MachineType: machineType, UID: spec.UID, ID: newID(), Namespace: spec.Namespace, Name: spec.Name, Epoch: spec.Epoch,
		GraceSeconds: new(graceSeconds(spec)), Settings: settingsOf(spec, asked), Root: root,
	}
	if err := inst.save(); err != nil {
		return err
	}
	return d.dir.Install(inst.Path, d.instanceOf(spec.UID).Path)
}

// converge takes one step after the other until none is left, or until one has to wait
// for the guest.
func (inst *instance) converge(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	for range maxSteps {
		if !inst.on {
			inst.driver.removeGroup(ctx, inst.CPUGroup)
		}
		next := nextStep(inst, spec)
		if next == stepNone || next == stepStart && !inst.mayStart(spec) {
			return inst.reportResult(spec), nil
		}
		waits, err := inst.applyStep(ctx, next, spec)
		if err != nil {
			return driver.Server{}, fmt.Errorf("%s of server %s: %w", next, inst.UID, err)
		}
		inst.notifyWatchers()
		if inst, err = inst.observe(ctx); err != nil {
			return driver.Server{}, classifyObserveError(err)
		}
		if waits && !inst.isEnded() {
			return inst.reportResult(spec), nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "the server %s changes as fast as Drover does", inst.UID)
}

// mayStart reports whether a start is requested. The exit of a run is reported before
// another run follows it, since the caller applies the restart policy. A caller that asks
// for a server to be on may not know yet that it has ended, before or during the call.
func (inst *instance) mayStart(spec driver.ServerSpec) bool {
	reported, ok := inst.driver.reportedExits.Load(inst.UID)
	return inst.exit == nil || inst.Run == spec.RestartRun || ok && inst.Run == reported
}

// reportResult adds what depends on the spec to the report of a server.
func (inst *instance) reportResult(spec driver.ServerSpec) driver.Server {
	out := inst.report()
	out.Refused = inst.refusedImage(spec)
	if inst.isAlive() && !spec.PowerOnly {
		want := settingsOf(spec, inst.Settings.Image)
		if inst.Root.Size == 0 {
			want.Image = inst.imageOf(spec)
		}
		out.Pending = inst.Settings.pendingFields(want)
	}
	out.Progress = cmp.Or(out.Progress, inst.driver.fetches.Progress(inst.UID))
	return out
}

// applyStep does one step; waits reports whether the next one has to wait for the guest.
func (inst *instance) applyStep(ctx context.Context, next step, spec driver.ServerSpec) (waits bool, err error) {
	journal.Record(ctx, journal.Action(next), nil, nil)
	switch next {
	case stepReap:
		return false, inst.quitEnded(ctx)
	case stepStart:
		if waits, err := inst.driver.fetchImages(ctx, inst, spec); waits || err != nil {
			return waits, err
		}
		if err := inst.driver.killStrays(ctx, inst.UID); err != nil {
			return false, err
		}
		if err := inst.startRun(ctx, spec); err != nil {
			return false, err
		}
		inst.driver.fetches.ReleaseExcept(spec.UID)
		return false, nil
	case stepFinish:
		return false, inst.finishStart(ctx, spec)
	case stepStop:
		if waits, err := inst.prepareRestart(ctx, spec); waits || err != nil {
			return waits, err
		}
		return inst.stopRun(ctx, spec)
	case stepGrow:
		return false, inst.growDisks(ctx, spec)
	case stepPause:
		return false, inst.Execute(ctx, "stop", nil, nil)
	case stepResume:
		return false, inst.resumeGuest(ctx)
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
func nextStep(s *instance, spec driver.ServerSpec) step {
	switch {
	case s.isEnded():
		return stepReap
	case !s.isAlive() && spec.Power == driver.PowerOff:
		return stepNone
	case !s.isAlive():
		return stepStart
	case s.Stop != nil, spec.Power == driver.PowerOff, spec.RestartRun != "" && s.Run == spec.RestartRun:
		return stepStop
	case s.Phase == phaseStarting:
		return stepFinish
	case len(s.sizesToGrow(spec)) > 0:
		return stepGrow
	case spec.Power == driver.PowerPaused && !s.isPaused():
		return stepPause
	case spec.Power == driver.PowerOn && s.isPaused():
		return stepResume
	}
	return stepNone
}
