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
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine/memory"
)

// maxSteps is more than the steps between any two states.
const maxSteps = 6

// Ensure creates a server or converges it to the spec.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	lock, err := beginChange(ctx, d.Host, spec.Target)
	if err != nil {
		return driver.Server{}, err
	}
	defer lock.Release()
	defer d.Host.Shares.Release(spec.UID)
	c := &convergence{driver: d, host: d.Host, spec: spec, inst: d.Host.InstanceOf(spec.UID)}
	err = c.findOrCreate(ctx)
	if errors.Is(err, errFetching) {
		return d.fetches.PendingServer(spec.UID), nil
	}
	if err != nil {
		return driver.Server{}, err
	}
	c.recordGracePeriod()
	out, err := c.convergeServer(ctx)
	if err == nil && c.inst.IsAlive() && c.unserved != nil {
		return driver.Server{}, c.unserved
	}
	return out, err
}

// beginChange begins a change of a server and returns the server's lock. If it fails,
// nothing was changed.
func beginChange(ctx context.Context, host *instance.Host, t driver.Target) (*statedir.Lock, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "%w", err)
	}
	if err := record.CheckUID(t.UID); err != nil {
		return nil, err
	}
	if err := host.StateDir.Reach(); err != nil {
		return nil, err
	}
	lock, err := host.StateDir.Lock(t.UID)
	if err != nil {
		return nil, err
	}
	if err := host.StateDir.Admit(host.ClusterID, t.Epoch); err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// convergence is one call of Ensure.
type convergence struct {
	driver *Driver
	host   *instance.Host
	spec   driver.ServerSpec
	// inst is the server as observed last. If the server does not exist, only the UID is known.
	inst *instance.Instance
	// unserved is why the machine, which is to stop, has not got its egress.
	unserved error
	// isPrepared is set when prepareStart has been done for the next start.
	isPrepared bool
}

// errFetching reports that a server cannot be created before its image is fetched.
var errFetching = errors.New("its image is being fetched")

// findOrCreate finds the server of the spec's UID. A stop and the egress come before all checks, so
// that a spec which no machine can satisfy keeps neither a machine running nor a network open.
func (c *convergence) findOrCreate(ctx context.Context) error {
	found, err := findServer(ctx, c.host, c.spec.Target)
	if err == nil {
		c.inst = found
		err = c.convergeEgress(ctx)
	}
	if err == nil {
		err = c.inst.RenameImage(c.spec)
	}
	switch {
	case err == nil && c.spec.Power == driver.PowerOff:
		return nil
	case err == nil:
		return c.checkSpec()
	case !errors.Is(err, driver.ErrNotFound) || c.spec.ID != "":
		return err
	}
	if err := cmp.Or(c.checkSpec(), c.spec.FilesErr); err != nil {
		return err
	}
	if waits, err := c.prepareStart(ctx); waits || err != nil {
		return cmp.Or(err, errFetching)
	}
	if err := c.createServer(ctx); err != nil {
		return c.host.StateDir.Explain(err)
	}
	c.host.Notify(c.spec.UID)
	c.inst, err = findServer(ctx, c.host, c.spec.Target)
	return err
}

// convergeEgress makes a machine that runs allow what the operator does. No failure of that delays a stop.
func (c *convergence) convergeEgress(ctx context.Context) error {
	if !c.inst.IsAlive() || c.inst.Phase != record.PhaseOn || !c.inst.Edge().NeedsEgress() {
		return nil
	}
	journal.Record(ctx, journal.Action(stepNetwork), snapshotOf(c.inst), snapshotOf(c.inst))
	err := c.inst.Edge().ConvergeEgress(ctx)
	c.host.Notify(c.inst.UID)
	if mustStop(c.inst, c.spec) {
		c.unserved = err
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s of server %s: %w", stepNetwork, c.inst.UID, err)
	}
	return nil
}

// findServer observes the server of a UID, whose lock the caller holds. It also finishes a
// release that was interrupted.
func findServer(ctx context.Context, host *instance.Host, t driver.Target) (*instance.Instance, error) {
	none := driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", t.UID)
	inst := host.InstanceOf(t.UID)
	inst.Leader = t.Epoch
	s, err := inst.Observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, none
	case err != nil:
		return nil, instance.ClassifyObserveError(err)
	case s.Retained:
		if err := s.MoveToRetained(ctx); err != nil {
			return nil, host.StateDir.Explain(err)
		}
		return nil, none
	case s.ClusterID != host.ClusterID:
		return nil, driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the engine has a server of UID %s that is not this cluster's", t.UID))
	case t.ID != "" && t.ID != s.ID:
		return nil, driver.Errorf(driver.ErrNotFound, "the server of UID %s is %s, not %s", t.UID, s.ID, t.ID)
	}
	return s, nil
}

// createServer makes a server that is off. It makes all of it or nothing.
func (c *convergence) createServer(ctx context.Context) error {
	host, spec := c.host, c.spec
	tmp, remove, err := host.StateDir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	inst := host.InstanceAt(filepath.Join(tmp, "vm"))
	if err := os.Mkdir(inst.Machine.Path, 0o700); err != nil {
		return err
	}
	release, err := host.Images.Hold()
	if err != nil {
		return err
	}
	defer release()
	requested := record.RequestedImage(spec, c.driver.defaultImage(spec))
	root, err := host.MakeRoot(inst.Machine.File(instance.RootDiskFile), spec, requested)
	if err != nil {
		return err
	}
	if err := host.Disks.Keep(inst.Machine.Path, root); err != nil {
		return err
	}
	machineType, err := host.Program.MachineType(ctx, "")
	if err != nil {
		return instance.ContractError(err)
	}
	inst.Record = record.NewRecord()
	inst.ClusterID, inst.UID, inst.Namespace, inst.Name, inst.Epoch = host.ClusterID, spec.UID, spec.Namespace, spec.Name, spec.Epoch
	inst.MachineType, inst.Root = machineType, root
	inst.GraceSeconds, inst.Settings = graceSeconds(spec), record.SettingsOf(spec, requested)
	if err := inst.Save(); err != nil {
		return err
	}
	journal.Record(ctx, journal.ActionCreate, nil, snapshotOf(inst))
	return host.StateDir.Install(inst.Machine.Path, host.InstanceOf(spec.UID).Machine.Path)
}

// snapshotOf returns what the journal has of a server: its id alone, since a guest can end at
// any time.
func snapshotOf(inst *instance.Instance) *journal.Snapshot { return &journal.Snapshot{ID: inst.ID} }

// recordGracePeriod records the grace period for a shutdown of the host, which does not read the
// spec. For a server that is off, the next start records it.
func (c *convergence) recordGracePeriod() {
	if c.inst.GraceSeconds == graceSeconds(c.spec) {
		return
	}
	c.inst.GraceSeconds = graceSeconds(c.spec)
	if !c.inst.IsAlive() {
		return
	}
	if err := c.inst.Save(); err != nil {
		c.host.Log.Info("Grace period of a machine cannot be recorded", "uid", c.inst.UID, "cause", err.Error())
	}
}

func graceSeconds(spec driver.ServerSpec) int64 { return int64(spec.GracePeriod / time.Second) }

// convergeServer takes one step after the other until no step is left, or until a step has to
// wait for the guest.
func (c *convergence) convergeServer(ctx context.Context) (driver.Server, error) {
	for range maxSteps {
		if !c.inst.On {
			c.host.RemoveGroup(ctx, c.inst.CPUGroup)
		}
		next := nextStep(c.inst, c.spec)
		if next == stepNone || next == stepStart && !c.mayStart() {
			return c.reportResult(), nil
		}
		waits, err := c.applyStep(ctx, next)
		if err != nil {
			return driver.Server{}, fmt.Errorf("%s of server %s: %w", next, c.inst.UID, err)
		}
		c.host.Notify(c.inst.UID)
		if c.inst, err = c.inst.Observe(ctx); err != nil {
			return driver.Server{}, instance.ClassifyObserveError(err)
		}
		if waits && !hasEndedDuring(next, c.inst) {
			return c.reportResult(), nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "the server %s changes as fast as Drover does", c.inst.UID)
}

// hasEndedDuring reports whether a step that waits for the guest has nothing to wait for any
// more. After a stop the QEMU may be gone already, since its supervisor makes it quit too.
func hasEndedDuring(s step, inst *instance.Instance) bool {
	return isLeftOver(inst) || s == stepStop && !inst.On
}

// isLeftOver reports whether QEMU still runs although its guest has ended.
func isLeftOver(inst *instance.Instance) bool { return inst.On && !inst.IsAlive() }

// mayStart reports whether a start is requested. The exit of a run is reported before
// another run follows it, since the caller applies the restart policy. A caller that asks
// for a server to be on may not know yet that it has ended, before or during the call.
func (c *convergence) mayStart() bool {
	reported, ok := c.host.ReportedExits.Load(c.inst.UID)
	return c.inst.Exit == nil || c.inst.Run == c.spec.RestartRun || ok && c.inst.Run == reported
}

// reportResult adds what depends on the spec to the report of a server.
func (c *convergence) reportResult() driver.Server {
	out := c.inst.Report()
	out.Refused = c.refusedImage()
	if c.inst.IsAlive() && !c.spec.PowerOnly {
		want := record.SettingsOf(c.spec, c.inst.Settings.Image)
		if !c.inst.KeepsRoot(c.spec) {
			want.Image = c.inst.ImageOf(c.spec)
		}
		out.Pending = pendingFields(c.inst.Settings, want)
	}
	out.Progress = cmp.Or(out.Progress, c.driver.fetches.Progress(c.inst.UID))
	return out
}

// applyStep does one step; waits reports whether the next one has to wait for the guest.
func (c *convergence) applyStep(ctx context.Context, next step) (waits bool, err error) {
	journal.Record(ctx, journal.Action(next), snapshotOf(c.inst), snapshotOf(c.inst))
	switch next {
	case stepReap:
		return false, c.inst.FinishEndedRun(ctx)
	case stepStart:
		return c.startServer(ctx)
	case stepFinish:
		return false, c.inst.FinishStart(ctx, c.spec)
	case stepStop:
		if waits, err := c.prepareRestart(ctx); waits || err != nil {
			return waits, err
		}
		return c.inst.StopRun(ctx, c.spec)
	case stepGrow, stepNetwork, stepPause, stepResume, stepGroup:
		return false, c.adjustMachine(ctx, next)
	case stepNone:
	}
	return true, nil
}

// startServer begins a run, once its images are there.
func (c *convergence) startServer(ctx context.Context) (waits bool, err error) {
	if waits, err := c.prepareStart(ctx); waits || err != nil {
		return waits, err
	}
	c.isPrepared = false
	if err := c.inst.StartRun(ctx, c.spec); err != nil {
		return false, err
	}
	c.driver.fetches.ReleaseExcept(c.spec.UID)
	return false, nil
}

// prepareStart ends other QEMUs of the UID, and reports whether the server has to wait for an image. A call that
// creates a server does this before, and not again for the first start: it holds the server's lock all the time.
func (c *convergence) prepareStart(ctx context.Context) (waits bool, err error) {
	if c.isPrepared {
		return false, nil
	}
	if err := cmp.Or(c.host.EndOthers(ctx, c.spec.UID), c.claimRun(ctx)); err != nil {
		return false, err
	}
	if waits, err := c.fetchImages(ctx); waits || err != nil {
		return waits, err
	}
	err = c.claimDisks() // images may make them larger
	c.isPrepared = err == nil
	return false, err
}

// adjustMachine does a step to a machine that runs on.
func (c *convergence) adjustMachine(ctx context.Context, next step) error {
	switch next {
	case stepGrow:
		return c.inst.GrowDisks(ctx, c.spec)
	case stepNetwork:
		return c.inst.Edge().Converge(ctx, c.spec)
	case stepPause:
		return c.inst.SupervisorCalls().Pause(ctx)
	case stepGroup:
		return instance.RestoreGroup(c.inst)
	default:
		return c.inst.ResumeGuest(ctx)
	}
}

// step is one thing to do to a server.
type step string

const (
	stepNone    step = "none"
	stepReap    step = "reap"   // a QEMU whose guest has ended
	stepStart   step = "start"  // a new run
	stepFinish  step = "finish" // a start that was interrupted
	stepStop    step = "stop"
	stepGrow    step = "growth of the disks"
	stepNetwork step = "change of the network"
	stepPause   step = "pause"
	stepResume  step = "resume"
	stepGroup   step = "restoration of the control group"
)

// nextStep returns the step that brings a server closer to its spec. A stop that was
// begun is completed even if the spec changes meanwhile, since a power button that was
// pressed cannot be released.
func nextStep(s *instance.Instance, spec driver.ServerSpec) step {
	_, mustGrow := s.SizesToGrow(spec)
	switch {
	case isLeftOver(s):
		return stepReap
	case !s.IsAlive() && spec.Power == driver.PowerOff:
		return stepNone
	case !s.IsAlive():
		return stepStart
	case mustStop(s, spec):
		return stepStop
	case s.Phase == record.PhaseStarting:
		return stepFinish
	case mustGrow:
		return stepGrow
	case !spec.PowerOnly && !instance.HasPortsOf(s.Record, spec):
		return stepNetwork
	case spec.Power == driver.PowerPaused && !s.IsPaused():
		return stepPause
	case spec.Power == driver.PowerOn && s.IsPaused():
		return stepResume
	}
	return nextRepair(s)
}

// nextRepair returns the step that restores the control group or the network of a run that is otherwise as its spec says.
func nextRepair(s *instance.Instance) step {
	switch {
	case instance.LacksGroup(s):
		return stepGroup
	case s.Edge().NeedsChange(): // last, since it may fail for as long as another program has a port
		return stepNetwork
	}
	return stepNone
}

// mustStop reports whether the run of a server has to end.
func mustStop(s *instance.Instance, spec driver.ServerSpec) bool {
	return s.Stop != nil || spec.Power == driver.PowerOff || spec.RestartRun != "" && s.Run == spec.RestartRun
}

// prepareRestart delays a stop before a restart until the next run has everything that it
// needs. Else the guest would be off while an image is fetched, and would stay off where
// something cannot be had.
func (c *convergence) prepareRestart(ctx context.Context) (waits bool, err error) {
	if c.inst.Stop != nil || c.spec.Power == driver.PowerOff {
		return false, nil
	}
	if waits, err := c.fetchImages(ctx); waits || err != nil {
		return waits, err
	}
	if err := cmp.Or(c.checkImages(), c.spec.FilesErr, c.claimRun(ctx), c.claimDisks()); err != nil {
		return false, err
	}
	if err := hostports.CheckForwards(ctx, c.spec.Ports, c.inst.Forwards, c.host.OpenPort); err != nil {
		return false, err
	}
	on, err := c.host.FindPlatform(ctx, c.inst.MachineType)
	if err != nil {
		return false, err
	}
	want := instance.DemandOf(c.inst, c.spec, on.Accelerator)
	want.Freed = c.inst.Settings.MemoryBytes + memory.OverheadOf(c.inst.Accelerator)
	return false, instance.ContractError(c.host.Memory.Check(want, c.host.FindRoom))
}

// refusedImage returns the image of a spec as refused if the root disk stands on another
// one. What the guest wrote is on top of that image, and unusable on top of any other.
func (c *convergence) refusedImage() *driver.Refused {
	requested := c.inst.ImageOf(c.spec)
	if !c.inst.KeepsRoot(c.spec) || c.host.Images.IsSame(c.inst.Root.Image, requested) {
		return nil
	}
	return &driver.Refused{Field: instance.RootField, Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image is %s: the root disk stands on %s and keeps it, with all writes of the guest: put that back, or delete the VirtualMachine, which removes its disks, and create it again",
		requested.Describe(), c.inst.Root.Image.Describe())}
}
