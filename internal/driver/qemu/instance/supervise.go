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

// SuperviseEvery is the longest interval between two tries to reach a machine's supervisor. The first is superviseAgain,
// since one that was killed may be about to end when the next is looked for.
const (
	SuperviseEvery = 5 * time.Second
	superviseAgain = 100 * time.Millisecond
)

// changesAtOnce and changeEvery bound how often a supervisor can have its machine looked at.
const changesAtOnce, changeEvery = 20, time.Second

// defaultLogBound is how large a machine's logs get, in bytes. QEMU writes them and knows no bound.
const defaultLogBound = 1 << 20

// ExitRecord returns the record of how the last run ended.
func (inst *Instance) ExitRecord() exits.Run {
	run := inst.Host.Exits.RunOf(inst.Machine, exits.Name{UID: inst.UID, ID: inst.ID, Run: inst.Run}, inst.StartedAt)
	if inst.Retained { // no caller asks for it
		run.EndFile = inst.Machine.File("end")
	}
	return run
}

// Supervisor returns what the machine's supervisor needs. What Drover itself records of the end of
// a run takes precedence over the supervisor's record.
func (inst *Instance) Supervisor() supervised.Machine {
	p := supervised.Machine{
		Machine: inst.Machine, Program: inst.Host.FindSupervisor, AreSeparate: inst.Host.Users.AreSeparate(), Starts: inst.Host.starts,
		Record: inst.ExitRecord().EndFile,
		Config: supervisor.HostConfig{Accelerator: inst.Accelerator, Disks: inst.DiskSizes(), LogBytes: inst.Host.LogBound, Network: inst.Edge().config(inst.Machine.UUID)},
		Reload: func() (supervised.Machine, error) {
			now, err := inst.Load()
			return now.Supervisor(), err
		},
	}
	if inst.Guest != nil {
		p.Config.GuestNonce = inst.Guest.Nonce
		if inst.Guest.Output != nil {
			p.Config.OutputBytes = inst.Host.OutputBound
		}
	}
	if inst.Phase == record.PhaseOn {
		p.Config.StartedAt = inst.StartedAt
	}
	if inst.Stop != nil {
		p.Config.StopID, p.Config.StopWithin = stopOf(inst.Stop.By, inst.Host.Clock.Now())
	}
	return p
}

// follower sees to the supervisor of one server.
type follower struct {
	inst     *Instance
	onChange func()
	pace     *rate.Limiter
	stays    string // why a supervisor of an earlier version was not replaced, as was logged
}

// Supervise sees to it that a QEMU has a supervisor which answers, and calls onChange when something about the
// machine changes, until QEMU is gone.
func Supervise(ctx context.Context, inst *Instance, onChange func()) {
	f := &follower{inst: inst, onChange: onChange, pace: rate.NewLimiter(rate.Every(changeEvery), changesAtOnce)}
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
		inst.Host.RemoveGroup(ctx, recorded.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// followOnce follows one supervisor until it has ended or is replaced, and reports whether it could.
func (f *follower) followOnce(ctx context.Context) (followed bool) {
	log := f.inst.Host.Log
	s, err := f.inst.Load()
	if err != nil {
		return false
	}
	place := s.Supervisor()
	c, err := place.Reach(ctx)
	if err != nil {
		log.V(1).Info("Machine is without a supervisor", "dir", s.Machine.Path, "cause", err.Error())
		return false
	}
	replaced, err := place.ReplaceOutdated(ctx, c.Token())
	if replaced {
		log.Info("Supervisor of an earlier version is replaced", "uid", s.UID)
		return err == nil
	}
	if err != nil {
		var cancel context.CancelFunc
		ctx, cancel = f.followOutdated(ctx, err)
		defer cancel()
	}
	watching, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { f.watchEgress(watching) })
	telling.Go(func() { f.connectPeers(watching, c) })
	defer func() {
		stop()
		telling.Wait()
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
		if err := place.Replace(ctx, c.Token()); err != nil {
			log.Error(err, "Supervisor cannot be ended", "uid", s.UID)
		}
	}
	return true
}

// replaceEvery is the time between two tries to replace a supervisor of an earlier version.
const replaceEvery = time.Minute

// followOutdated returns a context that ends when the replacement of a supervisor of an earlier version should be tried
// again. It logs the cause of the failed try once.
func (f *follower) followOutdated(ctx context.Context, cause error) (context.Context, context.CancelFunc) {
	if f.stays != cause.Error() {
		f.stays = cause.Error()
		f.inst.Host.Log.Info("Supervisor of an earlier version cannot be replaced yet", "uid", f.inst.UID, "cause", f.stays)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		f.waitFor(ctx, replaceEvery)
		cancel()
	}()
	return ctx, cancel
}

// egressEvery is how often it is checked whether what is allowed has changed, as the host's resolvers do.
const egressEvery = time.Minute

// watchEgress reports a change while the recorded egress differs from the one that this process allows. It changes
// nothing itself: only the leader may, which then looks at the machine.
func (f *follower) watchEgress(ctx context.Context) {
	for last := ""; ctx.Err() == nil; f.waitFor(ctx, egressEvery) {
		now, err := f.inst.Load()
		if err == nil && !now.Retained && !now.Edge().hasAllowedEgress() {
			f.onChange()
		}
		if _, err := f.inst.Host.findEgress(); err != nil && err.Error() != last {
			last = err.Error()
			f.inst.Host.Log.Info("Resolvers of the host cannot be found: machines keep those that they have", "cause", last)
		}
	}
}

// reportChange reports a change, and waits where a supervisor reports too many.
func (f *follower) reportChange(ctx context.Context) {
	f.onChange()
	now := f.inst.Host.Clock.Now()
	f.waitFor(ctx, f.pace.ReserveN(now, 1).DelayFrom(now))
}

// fingerprintState returns a text that differs between two states of a server whose supervisor cannot be reached.
func (f *follower) fingerprintState(ctx context.Context) (string, error) {
	s, err := f.inst.Observe(ctx)
	if err != nil && !IsBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, stateOf(s.IsAlive(), s.IsPaused(), s.QueryErr == nil, s.Record), s.Broken), nil
}

// waitFor waits as long as ctx allows.
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

// isSilent reports whether a supervisor does not answer, as one that is halted.
func isSilent(ctx context.Context, c *control.Client) bool {
	bounded, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	_, err := c.Status(bounded)
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}
