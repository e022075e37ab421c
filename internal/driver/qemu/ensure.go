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
)

// maxSteps is more than the steps between any two states.
const maxSteps = 6

// Ensure creates a server or takes it to what the spec says.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := checkPower(spec); err != nil {
		return driver.Server{}, err
	}
	lock, err := d.enterChange(ctx, spec.Target)
	if err != nil {
		return driver.Server{}, err
	}
	defer lock.Release()
	s, err := d.findOrCreate(ctx, spec)
	if errors.Is(err, errFetching) {
		return d.fetches.Server(spec.UID), nil
	}
	if err != nil {
		return driver.Server{}, err
	}
	d.keepGrace(s, spec)
	return d.converge(ctx, s, spec)
}

// errFetching reports that a server cannot be created before its image is fetched.
var errFetching = errors.New("its image is being fetched")

// findOrCreate returns the server of the spec's UID. A stop comes before all checks, so
// that a spec which no machine can satisfy does not keep one on.
func (d *Driver) findOrCreate(ctx context.Context, spec driver.ServerSpec) (*instance, error) {
	s, err := d.find(ctx, spec.Target)
	if err == nil {
		err = d.settleRoot(ctx, s, spec)
	}
	switch {
	case err == nil && spec.Power == driver.PowerOff:
		return s, nil
	case err == nil:
		return s, d.checkSpec(s, spec)
	case !errors.Is(err, driver.ErrNotFound) || spec.ID != "":
		return nil, err
	}
	if err := d.checkSpec(d.home(spec.UID), spec); err != nil {
		return nil, err
	}
	if err := d.killStrays(ctx, spec.UID); err != nil {
		return nil, err
	}
	if waits, err := d.fetching(ctx, d.home(spec.UID), spec); waits || err != nil {
		return nil, cmp.Or(err, errFetching)
	}
	journal.Note(ctx, journal.DeedCreate, nil, nil)
	if err := d.create(ctx, spec); err != nil {
		return nil, d.dir.Explain(err)
	}
	d.notify(spec.UID)
	return d.find(ctx, spec.Target)
}

// find observes the server of a UID, whose lock the caller holds. It also finishes a
// release that was interrupted.
func (d *Driver) find(ctx context.Context, t driver.Target) (*instance, error) {
	none := driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", t.UID)
	s, err := d.observe(ctx, d.home(t.UID))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err != nil:
		return nil, classifyObserveError(err)
	case s.Retained:
		if err := d.putAside(s); err != nil {
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

// classifyObserveError classifies the error of a failed observation: a broken server's
// own is ErrRetry, any other is ErrUnavailable.
func classifyObserveError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case isBroken(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return driver.Errorf(driver.ErrUnavailable, "%w", err)
}

// create makes a server that is off. It makes all of it or nothing.
func (d *Driver) create(ctx context.Context, spec driver.ServerSpec) error {
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	h := d.instanceAt(filepath.Join(tmp, "vm"))
	if err := os.Mkdir(h.Path, 0o700); err != nil {
		return err
	}
	release, err := d.images.Hold()
	if err != nil {
		return err
	}
	defer release()
	asked := imageOf(spec, imageSettings{Source: d.Image})
	root, err := d.makeRoot(h, spec, asked)
	if err != nil {
		return err
	}
	machineType, err := d.program.MachineType(ctx, "")
	if err != nil {
		return contractError(err)
	}
	h.record = record{
		ClusterID: d.ClusterID, MachineType: machineType, UID: spec.UID, ID: newName(), Namespace: spec.Namespace, Name: spec.Name, Epoch: spec.Epoch,
		GraceSeconds: new(graceSeconds(spec)), Settings: settingsOf(spec, asked), Root: root,
	}
	if err := h.save(); err != nil {
		return err
	}
	return d.dir.Install(h.Path, d.home(spec.UID).Path)
}

// converge takes one step after the other until none is left, or until one has to wait
// for the guest.
func (d *Driver) converge(ctx context.Context, s *instance, spec driver.ServerSpec) (driver.Server, error) {
	for range maxSteps {
		if !s.on {
			d.dropGroup(ctx, s.CPUGroup)
		}
		next := nextStep(s, spec)
		if next == stepNone || next == stepStart && !d.mayStart(s, spec) {
			return d.result(s, spec), nil
		}
		waits, err := d.applyStep(ctx, next, s, spec)
		if err != nil {
			return driver.Server{}, fmt.Errorf("%s of server %s: %w", next, s.UID, err)
		}
		d.notify(s.UID)
		if s, err = d.observe(ctx, s); err != nil {
			return driver.Server{}, classifyObserveError(err)
		}
		if waits && !s.ended() {
			return d.result(s, spec), nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "the server %s changes as fast as Drover does", s.UID)
}

// mayStart reports whether a start is asked for. The end of a run is reported before
// another run follows it, since the caller applies the restart policy. A caller that asks
// for a server to be on may not know yet that it has ended, before or during the call.
func (d *Driver) mayStart(s *instance, spec driver.ServerSpec) bool {
	told, _ := d.reportedExits.Load(s.UID)
	return s.end == nil || s.Run == spec.RestartRun || s.Run == told
}

// result adds what depends on the spec to the report of a server.
func (d *Driver) result(s *instance, spec driver.ServerSpec) driver.Server {
	out := d.report(s)
	out.Refused = d.refusedImage(s, spec)
	if s.alive() && !spec.PowerOnly {
		want := settingsOf(spec, s.Settings.Image)
		if s.Root.Size == 0 {
			want.Image = s.imageOf(spec)
		}
		out.Pending = s.Settings.pending(want)
	}
	out.Progress = cmp.Or(out.Progress, d.fetches.Progress(s.UID))
	return out
}

// applyStep does one step; waits reports whether the next one has to wait for the guest.
func (d *Driver) applyStep(ctx context.Context, next step, s *instance, spec driver.ServerSpec) (waits bool, err error) {
	journal.Note(ctx, journal.Deed(next), nil, nil)
	switch next {
	case stepReap:
		return false, d.reap(ctx, s)
	case stepStart:
		if waits, err := d.fetching(ctx, s, spec); waits || err != nil {
			return waits, err
		}
		if err := d.killStrays(ctx, s.UID); err != nil {
			return false, err
		}
		if err := d.start(ctx, s, spec); err != nil {
			return false, err
		}
		d.fetches.Keep(spec.UID)
		return false, nil
	case stepFinish:
		return false, d.finishStart(ctx, s, spec)
	case stepStop:
		if waits, err := d.beforeStop(ctx, s, spec); waits || err != nil {
			return waits, err
		}
		return d.stop(ctx, s, spec)
	case stepGrow:
		return false, d.grow(ctx, s, spec)
	case stepPause:
		return false, s.Execute(ctx, "stop", nil, nil)
	case stepResume:
		return false, d.resume(ctx, s)
	case stepNone:
	}
	return true, nil
}
