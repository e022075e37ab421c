// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
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

// start begins a run. It records what it is about to do, starts QEMU with the guest still
// halted, and then resumes the guest.
func (d *Driver) start(ctx context.Context, s *instance, spec driver.ServerSpec) error {
	on, err := d.platformOf(ctx, s)
	if err != nil {
		return err
	}
	release, err := d.room.Take(s.ID, demandOf(s, spec, on.accel), d.hostMemory)
	if err != nil {
		return contractError(err)
	}
	defer release()
	files := &machine.Files{}
	defer files.Close()
	m, err := d.prepare(ctx, s, spec, on, files)
	if err != nil {
		return err
	}
	before := s.record
	runLock, err := s.ClaimRun()
	if err != nil {
		return contractError(err)
	}
	defer func() { _ = runLock.Close() }()
	if err := s.rotateLog(); err != nil {
		return d.dir.Explain(err)
	}
	d.faults.heard.Delete(s.Path)
	s.Phase, s.Run, s.StartedAt = phaseStarting, newName(), d.Clock.Now()
	s.Stop, s.Settings, s.Forwards = nil, settingsOf(spec, s.Root.Image.imageSettings), m.Forwards
	s.MachineType, s.Accelerator = m.Type, m.Accel
	d.planGroup(s, spec.CPUMilli)
	if err := s.save(); err != nil {
		return d.dir.Explain(err)
	}
	if err := d.launch(ctx, s, m, spec.Ports, runLock); err != nil {
		_ = runLock.Close()
		return errors.Join(err, d.undoStart(ctx, s, before))
	}
	return d.finishStart(ctx, s, spec)
}

// platform is the part of a machine that no spec names.
type platform struct {
	machineType, accel string
}

func (d *Driver) platformOf(ctx context.Context, s *instance) (platform, error) {
	machineType, err := d.program.MachineType(ctx, s.MachineType)
	if err != nil {
		return platform{}, contractError(err)
	}
	accel, err := d.accel.Choose(ctx)
	if !errors.Is(err, ctx.Err()) { // else there is no error, or only that of ctx
		err = d.dir.Explain(err)
	}
	return platform{machineType, accel}, err
}

// prepare gathers what a run needs, and opens the files that QEMU is to get.
func (d *Driver) prepare(ctx context.Context, s *instance, spec driver.ServerSpec, on platform, files *machine.Files) (machine.Config, error) {
	release, err := d.images.Hold()
	if err != nil {
		return machine.Config{}, err
	}
	defer release()
	volumes, err := d.prepareVolumes(s, spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	kernel, err := d.openKernel(spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	if err := s.WriteSeed(seedOf(spec)); err != nil {
		return machine.Config{}, d.dir.Explain(err)
	}
	forwards, err := chooseForwards(ctx, spec.Ports, s.Forwards, d.choose)
	if err != nil {
		return machine.Config{}, err
	}
	root, err := d.prepareRoot(s, spec, files)
	if err != nil {
		return machine.Config{}, err
	}
	return machine.Config{
		UUID: string(s.UID), ID: s.ID, Type: on.machineType, Accel: on.accel, CPUs: wholeCPUs(spec.CPUMilli), MemoryBytes: spec.MemoryBytes,
		Root: root, Volumes: volumes, Kernel: kernel, Forwards: forwards, Files: files,
	}, nil
}

// launch starts QEMU. Another process may take a chosen host port before QEMU has it,
// such as a machine that is started at the same time. Then launch chooses another port.
func (d *Driver) launch(ctx context.Context, s *instance, m machine.Config, ports []driver.Port, runLock *os.File) error {
	for try := 1; ; try++ {
		err := s.Start(ctx, d.Binary, m, runLock)
		ended, ok := errors.AsType[*machine.StartError](err)
		if !ok || ended.Taken < 0 {
			return contractError(err)
		}
		n := ended.Taken
		if !m.Forwards[n].Chosen || try == chooseTries {
			return portConflict(n, ports[n], m.Forwards[n], errors.New(ended.Output))
		}
		if m.Forwards, err = chooseForwards(ctx, ports, m.Forwards, d.choose); err != nil {
			return err
		}
		s.Forwards = m.Forwards
		if err := s.save(); err != nil {
			return d.dir.Explain(err)
		}
	}
}

// undoStart restores a server whose QEMU did not come up to what it was before.
func (d *Driver) undoStart(ctx context.Context, s *instance, before record) error {
	if err := s.Kill(ctx); err != nil {
		return err
	}
	d.dropGroup(ctx, s.CPUGroup)
	s.record = before
	return errors.Join(s.SetLogAside(machine.FailedLog), s.save())
}

// finishStart resumes the guest of a QEMU that is up, whichever process started it. It
// does so last: if the process is killed before, the server is found paused, and the next
// leader resumes it.
func (d *Driver) finishStart(ctx context.Context, s *instance, spec driver.ServerSpec) error {
	if err := s.ProtectSockets(); err != nil {
		return err
	}
	if err := d.grow(ctx, s, spec); err != nil {
		return err
	}
	d.limitCPU(ctx, s)
	d.forgetEnds(s.UID)
	s.Phase = phaseOn
	if err := s.save(); err != nil {
		return d.dir.Explain(err)
	}
	if spec.Power == driver.PowerPaused {
		return nil
	}
	// Notify first, so that other processes attend the machine even if this leader stops
	// right after.
	d.notify(s.UID)
	if err := s.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	d.removeOldRoot(s)
	return nil
}

// resume resumes a guest. One that a disk error paused retries the same request, and
// whether that works shows at once. Without that check it would be resumed again and
// again.
func (d *Driver) resume(ctx context.Context, s *instance) error {
	if s.status != machine.StatusIOError {
		return s.Execute(ctx, "cont", nil, nil)
	}
	asked, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := s.Dial(asked, machine.ControlSocket, func(event qmp.Event) { d.faults.hear(s.Path, event) })
	if err != nil {
		return err
	}
	defer c.Close()
	if at, ok := d.faults.resumed.Load(s.Path); ok && d.Clock.Now().Sub(at.(time.Time)) < resumeAgain {
		return d.faults.find(asked, s.Path, c)
	}
	if err := c.Execute(asked, "cont", nil, nil); err != nil {
		return err
	}
	looked, stop := context.WithTimeout(asked, writesWithin)
	defer stop()
	for proc.Pause(looked, 4*proc.PollEvery) {
		if status, err := machine.QueryStatus(looked, c); err == nil && status == machine.StatusIOError {
			return d.faults.find(asked, s.Path, c)
		}
	}
	d.faults.resumed.Store(s.Path, d.Clock.Now())
	return nil
}

// beforeStop delays a stop before a restart until the next run has what it needs. Else
// the guest would be off while an image is fetched, and for good where something cannot
// be had.
func (d *Driver) beforeStop(ctx context.Context, s *instance, spec driver.ServerSpec) (waits bool, err error) {
	if s.Stop != nil || spec.Power == driver.PowerOff {
		return false, nil
	}
	if waits, err := d.fetching(ctx, s, spec); waits || err != nil {
		return waits, err
	}
	if err := d.checkImages(s, spec); err != nil {
		return false, err
	}
	if err := checkForwards(ctx, spec.Ports, s.Forwards, d.choose); err != nil {
		return false, err
	}
	on, err := d.platformOf(ctx, s)
	if err != nil {
		return false, err
	}
	want := demandOf(s, spec, on.accel)
	want.Freed = s.Settings.MemoryBytes + memory.OverheadOf(d.accelOf(s))
	return false, contractError(d.room.Check(want, d.hostMemory))
}

// stop presses the power button, and ends the run when StopBy has passed. A guest that
// was not resumed yet has nothing to shut down, and its start may be one that cannot be
// finished.
func (d *Driver) stop(ctx context.Context, s *instance, spec driver.ServerSpec) (waits bool, err error) {
	if s.Phase == phaseStarting {
		return false, s.Quit(ctx)
	}
	now := stop{By: spec.StopBy}
	if s.Stop != nil && spec.Power != driver.PowerOff && spec.RestartRun != s.Run {
		now.By = s.Stop.By
	}
	if !now.By.IsZero() && !d.Clock.Now().Before(now.By) {
		return false, d.force(ctx, s)
	}
	if s.Stop == nil || !s.Stop.By.Equal(now.By) {
		s.Stop = &now
		if err := s.save(); err != nil {
			return true, d.dir.Explain(err)
		}
	}
	return true, d.press(ctx, s)
}

// press presses the power button if pressEvery has passed. A paused guest is resumed,
// since it would not notice the button.
func (d *Driver) press(ctx context.Context, s *instance) error {
	if !d.pressed.due(s.UID, s.Run, d.Clock.Now()) {
		return nil
	}
	return s.Control(ctx, func(ctx context.Context, c *qmp.Client) error { return machine.PowerDown(ctx, c, s.isPaused()) })
}

// pressed records when power buttons were pressed.
type pressed struct {
	mu   sync.Mutex
	last map[types.UID]press
}

type press struct {
	run string
	at  time.Time
}

func (p *pressed) due(uid types.UID, run string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, known := p.last[uid]; known && last.run == run && now.Sub(last.at) < pressEvery {
		return false
	}
	if p.last == nil {
		p.last = map[types.UID]press{}
	}
	p.last[uid] = press{run, now}
	return true
}

func (p *pressed) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, uid)
}

// force ends a run that the guest did not end, even where that cannot be recorded.
func (d *Driver) force(ctx context.Context, s *instance) error {
	_, _ = d.keepEnd(s, driver.Exit{Code: codeKilled, Reason: "Forced", At: d.Clock.Now()})
	return s.Quit(ctx)
}

// reap ends a QEMU whose guest has ended. Where the end is not recorded, QEMU stays,
// since only it holds how the guest ended.
func (d *Driver) reap(ctx context.Context, s *instance) error {
	if s.unkept != nil {
		return s.unkept
	}
	d.pressed.forget(s.UID)
	return s.Quit(ctx)
}
