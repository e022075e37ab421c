// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
)

const (
	// defaultGrace is for a record without a grace period, as of an older version.
	defaultGrace = 30 * time.Second
	// lockWithin is how long a shutdown of the host waits for a server that another caller
	// is changing. After that it continues without the lock, since the guest loses more by a
	// power cut.
	lockWithin = 5 * time.Second
	// statusEvery is the interval between two queries of a guest that is to power off.
	statusEvery = 250 * time.Millisecond
	// EndWithin is how long ShutDown takes at most beyond its limit.
	EndWithin = machine.CommandWithin + goneWithin + lockWithin + machine.QuitWithin + 2*proc.KillWithin
)

// Ended is a machine that ShutDown has ended, or could not end.
type Ended struct {
	Namespace, Name string
	// Forced reports whether the guest did not power off within its time.
	Forced bool
	// Err is why the machine still runs.
	Err error
}

// ShutDown ends all machines in the folder of the options, for a host that is about to
// shut down: those of every cluster, and the released ones. Each run gets the exit reason
// driver.ExitHostShutdown. Each guest gets a press of its power button and its grace
// period, at most limit, and then each QEMU is ended. If ShutDown is interrupted, the
// next ShutDown or driver continues from the records.
//
// The servers stay locked until the last machine has ended, so that no controller starts
// one again meanwhile.
func ShutDown(ctx context.Context, o Options, limit time.Duration) ([]*Ended, error) {
	o = o.withDefaults()
	dir, err := statedir.OpenExisting("the qemu driver's folder", o.Dir)
	if err != nil {
		return nil, err
	}
	d := &Driver{Options: o, dir: dir}
	instances, err := d.allInstances()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit+EndWithin)
	defer cancel()
	locks, ended := make([]*statedir.Lock, len(instances)), make([]*Ended, len(instances))
	var all sync.WaitGroup
	for i, inst := range instances {
		all.Go(func() {
			locks[i] = inst.lockForShutdown(ctx)
			ended[i] = inst.shutDown(ctx, limit)
		})
	}
	all.Wait()
	for _, lock := range slices.DeleteFunc(locks, func(l *statedir.Lock) bool { return l == nil }) {
		lock.Release()
	}
	return slices.DeleteFunc(ended, func(e *Ended) bool { return e == nil }), nil
}

// lockForShutdown takes the lock of a server that is to end, or returns nil. A released server
// needs no lock, since no caller changes it.
func (inst *instance) lockForShutdown(ctx context.Context) *statedir.Lock {
	if filepath.Base(filepath.Dir(inst.Path)) == retainedDir {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	for {
		lock, err := inst.driver.dir.Lock(inst.UID)
		if err == nil {
			return lock
		}
		if !errors.Is(err, driver.ErrRetry) || !proc.Pause(ctx, proc.PollEvery) {
			inst.driver.Log.Info("Machine is ended without its lock", "uid", inst.UID, "cause", err.Error())
			return nil
		}
	}
}

// shutDown ends one machine; nil means that it did not run. It also ends one whose record
// cannot be read or written.
func (inst *instance) shutDown(ctx context.Context, limit time.Duration) *Ended {
	s, err := inst.observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !s.on:
		return nil
	case err != nil && !isBroken(err):
		return &Ended{Name: string(inst.UID), Err: err}
	}
	ended := &Ended{Namespace: s.Namespace, Name: cmp.Or(s.Name, string(s.UID))}
	if s.isAlive() && s.Phase != phaseStarting {
		within := s.recordShutdown(min(s.gracePeriod(), limit))
		ended.Forced = !s.pressUntilOff(ctx, within)
	}
	if ended.Err = s.Quit(ctx); ended.Err == nil {
		inst.driver.removeGroup(ctx, s.CPUGroup)
	}
	return ended
}

// recordShutdown records, before the run ends, why it ends and that it is being stopped, so
// that a driver which starts meanwhile completes the stop. It returns how long the guest
// has, which an earlier stop may already limit. For a released server no exit is
// recorded.
func (inst *instance) recordShutdown(within time.Duration) time.Duration {
	if inst.broken != nil {
		return within
	}
	now := inst.driver.Clock.Now()
	if !inst.Retained {
		_, _ = inst.recordExit(driver.Exit{Reason: driver.ExitHostShutdown, At: now})
	}
	if inst.Stop != nil && !inst.Stop.By.IsZero() && inst.Stop.By.Before(now.Add(within)) {
		return inst.Stop.By.Sub(now)
	}
	inst.Stop = &stop{By: now.Add(within)}
	if err := inst.save(); err != nil {
		inst.driver.Log.Info("Machine is stopped, and that cannot be written down", "uid", inst.UID, "cause", err.Error())
	}
	return within
}

// gracePeriod returns how long the guest has to power off.
func (inst *instance) gracePeriod() time.Duration {
	switch {
	case inst.status == machine.StatusPrelaunch:
		return 0 // it has not run yet
	case inst.GraceSeconds == nil:
		return defaultGrace
	}
	return time.Duration(*inst.GraceSeconds) * time.Second
}

// pressUntilOff presses the power button until the guest has ended, and reports whether
// that was in time.
func (inst *instance) pressUntilOff(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		if on, err := inst.IsRunning(); !on && err == nil {
			return true
		}
		_ = inst.Control(ctx, func(ctx context.Context, c *qmp.Client) (err error) {
			if inst.status, err = machine.QueryStatus(ctx, c); err != nil || inst.hasGuestEnded() || !inst.claimPowerPress() {
				return err
			}
			return machine.PowerDown(ctx, c, inst.isPaused())
		})
		if inst.hasGuestEnded() {
			return true
		}
		proc.Pause(ctx, statusEvery)
	}
	return false
}

// recordGracePeriod records the grace period for a shutdown of the host, which has no spec. For a
// server that is off, the next start records it.
func (inst *instance) recordGracePeriod(spec driver.ServerSpec) {
	if inst.GraceSeconds != nil && *inst.GraceSeconds == graceSeconds(spec) {
		return
	}
	inst.GraceSeconds = new(graceSeconds(spec))
	if !inst.isAlive() {
		return
	}
	if err := inst.save(); err != nil {
		inst.driver.Log.Info("Grace period of a machine cannot be written down", "uid", inst.UID, "cause", err.Error())
	}
}

func graceSeconds(spec driver.ServerSpec) int64 { return int64(spec.GracePeriod / time.Second) }
