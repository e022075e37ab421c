// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// SuperviseEvery is the interval between two tries to reach a machine's supervisor.
const SuperviseEvery = 5 * time.Second

// changesAtOnce and changeEvery bound how often a supervisor can have its machine looked at.
const changesAtOnce, changeEvery = 20, time.Second

// defaultLogBound is how large a machine's logs get, in bytes. QEMU writes them and knows no bound.
const defaultLogBound = 1 << 20

// place returns what the machine's supervisor needs.
func (inst *Instance) place() supervisor.Place {
	p := supervisor.Place{
		Machine: inst.Machine, Program: inst.Host.FindSupervisor, Record: inst.recordFile(), AreSeparate: inst.Host.Users.AreSeparate(),
		Config: supervisor.HostConfig{Accelerator: inst.Accelerator, Disks: inst.diskSizes(), LogBytes: inst.Host.LogBound},
		Reload: func() (supervisor.Place, error) {
			now, err := inst.Load()
			return now.place(), err
		},
	}
	if inst.Phase == record.PhaseOn {
		p.Config.StartedAt = inst.StartedAt
	}
	if inst.Stop != nil {
		p.Config.StopID, p.Config.StopWithin = inst.stopOf(inst.Stop.By)
	}
	return p
}

// Reach returns a client of the machine's supervisor, and starts one if there is none. The machine is one that
// runs.
func (inst *Instance) Reach(ctx context.Context) (*control.Client, error) {
	return inst.place().Reach(ctx)
}

// call has the supervisor do something.
func (inst *Instance) call(ctx context.Context, what string, do func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Reach(ctx)
	if err != nil {
		return ContractError(err)
	}
	point := crashpoint.Begin("machine "+what, inst.UUID)
	err = point.Inject(func(ctx context.Context) error { return do(ctx, c) })(ctx)
	point.End()
	return ContractError(err)
}

// Supervise sees to it that a QEMU has a supervisor which answers, and calls onChange when something about the
// machine changes, until QEMU is gone.
func (inst *Instance) Supervise(ctx context.Context, onChange func()) {
	recorded, _ := inst.Load()
	wasOn := false
	pace := rate.NewLimiter(rate.Every(changeEvery), changesAtOnce)
	report := func() {
		onChange()
		now := inst.Host.Clock.Now()
		inst.pause(ctx, pace.ReserveN(now, 1).DelayFrom(now))
	}
	for last := ""; ctx.Err() == nil && inst.mayExist(); wasOn = true {
		if on, err := inst.IsRunning(); err == nil && !on {
			break
		}
		began := inst.Host.Clock.Now()
		if inst.superviseOnce(ctx, report) && inst.Host.Clock.Since(began) >= SuperviseEvery {
			continue
		}
		if now, err := inst.stateFingerprint(ctx); err == nil && now != last {
			last = now
			onChange()
		}
		inst.pause(ctx, SuperviseEvery)
	}
	if ctx.Err() != nil || !wasOn {
		return
	}
	onChange()
	if recorded.Retained {
		inst.Host.RemoveGroup(ctx, recorded.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// superviseOnce follows one supervisor until it has ended or is replaced, and reports whether it could.
func (inst *Instance) superviseOnce(ctx context.Context, onChange func()) (followed bool) {
	s, err := inst.Load()
	if err != nil {
		return false
	}
	c, err := s.Reach(ctx)
	if err != nil {
		inst.Host.Log.V(1).Info("Machine has no supervisor", "dir", inst.Path, "cause", err.Error())
		return false
	}
	if place := s.place(); place.IsOutdated() {
		inst.Host.Log.Info("Supervisor of an earlier version is replaced", "uid", inst.UID)
		return place.Replace(ctx, c.Token()) == nil
	}
	err = c.Watch(ctx, func() {
		followed = true
		onChange()
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		inst.replaceSilent(ctx, c)
		return true
	}
	return followed
}

// stateFingerprint returns a text that differs between two states of a server whose supervisor cannot be reached.
func (inst *Instance) stateFingerprint(ctx context.Context) (string, error) {
	s, err := inst.Observe(ctx)
	if err != nil && !IsBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.driverState(), s.Broken), nil
}

// pause waits as long as ctx allows.
func (inst *Instance) pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := inst.Host.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// replaceSilent ends a supervisor that does not answer, as one that is halted.
func (inst *Instance) replaceSilent(ctx context.Context, c *control.Client) {
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	_, err := c.Status(bounded)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return
	}
	inst.Host.Log.Info("Supervisor does not answer, and is replaced", "uid", inst.UID)
	if err := inst.place().Replace(ctx, c.Token()); err != nil {
		inst.Host.Log.Error(err, "Supervisor cannot be ended", "uid", inst.UID)
	}
}

// EndSilent ends the supervisor of a machine if it did not answer when the machine was observed, so that the next call
// starts another: where nothing watches the machine, nothing else would.
func (inst *Instance) EndSilent(ctx context.Context) error {
	if !errors.Is(inst.QueryErr, context.DeadlineExceeded) {
		return nil
	}
	c, err := inst.Reach(ctx)
	if err != nil {
		return err
	}
	inst.Host.Log.Info("Supervisor does not answer, and is replaced", "uid", inst.UID)
	return inst.place().Replace(ctx, c.Token())
}

// queryMachine asks the supervisor what the machine does.
func (inst *Instance) queryMachine(ctx context.Context) (s control.Status, err error) {
	c, err := inst.Reach(ctx)
	if err != nil {
		return s, err
	}
	if s, err = c.Status(ctx); err != nil {
		return s, fmt.Errorf("querying the machine: %w", err)
	}
	return s, nil
}

// exitOfEnd returns the exit that a supervisor has recorded, as far as it can be true. It is the same each time.
func (inst *Instance) exitOfEnd(e *supervisor.End, written time.Time) driver.Exit {
	exit := driver.Exit{Code: CodeKilled, Reason: ReasonKilled, At: e.At, Output: machine.Printable(e.Output, OutputTail)}
	switch code, known := exitCodes[e.Reason]; {
	case known:
		exit.Code, exit.Reason = code, e.Reason
	case e.Reason == machine.EndForced:
		exit.Reason = machine.EndForced
	}
	if e.At.After(inst.Host.Clock.Now()) || e.At.Before(inst.StartedAt) {
		exit.At = written
	}
	return exit
}
