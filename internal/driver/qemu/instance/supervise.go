// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/supervised"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// SuperviseEvery is the longest interval between two tries to reach or start a machine's supervisor. The first interval
// is superviseAgain, because a supervisor that was killed may take a moment to end.
const (
	SuperviseEvery = 5 * time.Second
	superviseAgain = 100 * time.Millisecond
)

// changesAtOnce and changeEvery limit how many changes of a machine a supervisor can report: a burst, and then a rate.
const changesAtOnce, changeEvery = 20, time.Second

// defaultLogBound is the size in bytes at which the supervisor cuts a machine's log, since QEMU does not limit its logs.
const defaultLogBound = 1 << 20

// ExitRecord returns the record of how the last run ended.
func (inst *Instance) ExitRecord() exits.Run {
	run := inst.Host.Exits.RunOf(inst.Machine, exits.Name{UID: inst.UID, ID: inst.ID, Run: inst.Run}, inst.StartedAt)
	if inst.Retained { // kept with the machine: no caller asks for it any more
		run.EndFile = inst.Machine.File("end")
	}
	return run
}

// Supervisor returns the machine with the configuration for its supervisor. An end of a run that
// Drover itself records takes precedence over the supervisor's record.
func (inst *Instance) Supervisor() supervised.Machine {
	m := supervised.Machine{
		Machine: inst.Machine, Program: inst.Host.FindSupervisor, AreSeparate: inst.Host.Users.AreSeparate(), Starts: inst.Host.starts,
		Record: inst.ExitRecord().EndFile,
		Config: supervisor.HostConfig{Accelerator: inst.Accelerator, Disks: inst.DiskSizes(), LogBytes: inst.Host.LogBound, Network: inst.Edge().config()},
		Reload: func() (supervised.Machine, error) {
			now, err := inst.Load()
			return now.Supervisor(), err
		},
	}
	if inst.Guest != nil {
		m.Config.GuestNonce, m.Config.HealthCheck = inst.Guest.Nonce, inst.Guest.HealthCheck
		if inst.Guest.Output != nil {
			m.Config.OutputBytes = inst.Host.OutputBound
		}
	}
	if inst.Phase == record.PhaseOn {
		m.Config.StartedAt = inst.StartedAt
	}
	if inst.Stop != nil {
		m.Config.StopID, m.Config.StopWithin = stopIDAndTimeout(inst.Stop.By, inst.Host.Clock.Now())
	}
	return m
}

// follower keeps a supervisor running for one server, and follows its reports.
type follower struct {
	inst       *Instance
	onChange   func()
	changeRate *rate.Limiter
	logged     string // the last logged reason why a supervisor of an earlier version was not replaced
}

// Supervise keeps a supervisor running that answers, and calls onChange when something about the machine changes. It
// returns when QEMU is gone.
func Supervise(ctx context.Context, inst *Instance, onChange func()) {
	f := &follower{inst: inst, onChange: onChange, changeRate: rate.NewLimiter(rate.Every(changeEvery), changesAtOnce)}
	recorded, _ := inst.Load()
	wasOn, wait := false, superviseAgain
	for last := ""; ctx.Err() == nil && !inst.IsGone(); wasOn = true {
		if on, err := inst.Machine.IsRunning(); err == nil && !on {
			break
		}
		began := inst.Host.Clock.Now()
		if f.followOnce(ctx) && inst.Host.Clock.Since(began) >= SuperviseEvery {
			wait = superviseAgain
			continue
		}
		if now, err := f.fingerprintState(ctx); err == nil && now != last {
			last = now
			onChange()
		}
		f.waitFor(ctx, wait)
		wait = min(2*wait, SuperviseEvery)
	}
	if ctx.Err() != nil || !wasOn {
		return
	}
	onChange()
	if recorded.Retained {
		inst.Host.RemoveGroup(ctx, recorded.CPUGroup) // Drover neither starts nor deletes a released server, which would remove it
	}
}

// followOnce follows one supervisor until its end or replacement, and reports whether the supervisor has answered.
func (f *follower) followOnce(ctx context.Context) (followed bool) {
	log := f.inst.Host.Log
	s, err := f.inst.Load()
	if err != nil {
		return false
	}
	m := s.Supervisor()
	c, err := m.Reach(ctx)
	if err != nil {
		log.V(1).Info("Machine is without a supervisor", "dir", s.Machine.Path, "cause", err.Error())
		return false
	}
	replaced, err := m.ReplaceOutdated(ctx, c.Token())
	if replaced {
		log.Info("Supervisor of an earlier version is replaced", "uid", s.UID)
		return err == nil
	}
	if err != nil {
		var cancel context.CancelFunc
		ctx, cancel = f.followOutdated(ctx, err)
		defer cancel()
	}
	watchCtx, stopWatches := context.WithCancel(ctx)
	var watches sync.WaitGroup
	watches.Go(func() { f.watchEgress(watchCtx) })
	watches.Go(func() { f.connectPeers(watchCtx, c) })
	defer func() {
		stopWatches()
		watches.Wait()
	}()
	err = c.Watch(ctx, func() {
		followed = true
		f.reportChange(ctx)
	})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return followed
	}
	if isSilent(ctx, c) {
		log.Info("Supervisor does not answer, and is replaced", "uid", s.UID)
		if err := m.Replace(ctx, c.Token()); err != nil {
			log.Error(err, "Supervisor cannot be ended", "uid", s.UID)
		}
	}
	return true
}

// replaceEvery is the time between two tries to replace a supervisor of an earlier version.
const replaceEvery = time.Minute

// followOutdated returns a context that ends when the next try to replace a supervisor of an earlier version is due. It
// logs each cause of a failed try once.
func (f *follower) followOutdated(ctx context.Context, cause error) (context.Context, context.CancelFunc) {
	if f.logged != cause.Error() {
		f.logged = cause.Error()
		f.inst.Host.Log.Info("Supervisor of an earlier version cannot be replaced yet", "uid", f.inst.UID, "cause", f.logged)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		f.waitFor(ctx, replaceEvery)
		cancel()
	}()
	return ctx, cancel
}

// egressEvery is how often watchEgress compares the egress, since for example the host's resolvers may change.
const egressEvery = time.Minute

// watchEgress reports a change while the recorded egress differs from the egress that this process allows. Only the leader
// may change the machine, and does so when it sees the change.
func (f *follower) watchEgress(ctx context.Context) {
	for last := ""; ctx.Err() == nil; f.waitFor(ctx, egressEvery) {
		now, err := f.inst.Load()
		if err == nil && !now.Retained && !now.Edge().hasAllowedEgress() {
			f.onChange()
		}
		if _, err := f.inst.Host.findEgress(); err != nil && err.Error() != last {
			last = err.Error()
			f.inst.Host.Log.Info("Resolvers of the host cannot be found: machines keep their present resolvers", "cause", last)
		}
	}
}

// reportChange reports a change. It then waits if the supervisor reports changes too fast.
func (f *follower) reportChange(ctx context.Context) {
	f.onChange()
	now := f.inst.Host.Clock.Now()
	f.waitFor(ctx, f.changeRate.ReserveN(now, 1).DelayFrom(now))
}

// fingerprintState returns a text that changes with the state of a server whose supervisor cannot be reached.
func (f *follower) fingerprintState(ctx context.Context) (string, error) {
	s, err := f.inst.Observe(ctx)
	if err != nil && !IsBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, stateOf(s.IsAlive(), s.IsPaused(), s.QueryErr == nil, s.Record), s.Broken), nil
}

// waitFor waits for a duration, or until ctx ends.
func (f *follower) waitFor(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := f.inst.Host.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// isSilent reports whether a supervisor does not answer, for example because it is suspended.
func isSilent(ctx context.Context, c *control.Client) bool {
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	_, err := c.Status(bounded)
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}
