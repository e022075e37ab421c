// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// lockWithin is how long a shutdown of the host waits for a server that another caller
	// is changing. After that it continues without the lock, since the guest loses more by a
	// power cut.
	lockWithin = 5 * time.Second
	// EndWithin is how long ShutDown takes at most beyond its limit.
	EndWithin = machine.CommandWithin + instance.GoneWithin + lockWithin + machine.QuitWithin + 2*proc.KillWithin
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
	instances, err := o.newHost(&launch.Users{}, dir).AllInstances()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit+EndWithin)
	defer cancel()
	locks, ended := make([]*statedir.Lock, len(instances)), make([]*Ended, len(instances))
	var all sync.WaitGroup
	for i, inst := range instances {
		all.Go(func() {
			locks[i] = lockForShutdown(ctx, inst)
			ended[i] = shutDown(ctx, inst, limit)
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
func lockForShutdown(ctx context.Context, inst *instance.Instance) *statedir.Lock {
	if instance.IsRetained(inst.Machine.Path) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	for {
		lock, err := inst.Host.StateDir.Lock(inst.UID)
		if err == nil {
			return lock
		}
		if !errors.Is(err, driver.ErrRetry) || !proc.Pause(ctx, proc.PollEvery) {
			inst.Host.Log.Info("Machine is ended without its lock", "uid", inst.UID, "cause", err.Error())
			return nil
		}
	}
}

// shutDown ends one machine; nil means that it did not run. It also ends one whose record
// cannot be read or written.
func shutDown(ctx context.Context, inst *instance.Instance, limit time.Duration) *Ended {
	s, err := inst.Observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !s.On:
		return nil
	case err != nil && !instance.IsBroken(err):
		return &Ended{Name: string(inst.UID), Err: err}
	}
	ended := &Ended{Namespace: s.Namespace, Name: cmp.Or(s.Name, string(s.UID))}
	if s.IsAlive() && s.Phase != record.PhaseStarting {
		within := recordShutdown(s, min(gracePeriod(s), limit))
		ended.Forced = !waitOff(ctx, s, within)
	}
	if ended.Err = s.Quit(ctx); ended.Err == nil {
		ended.Err = s.Supervisor().End(ctx)
		s.Host.RemoveGroup(ctx, s.CPUGroup)
	}
	ended.Forced = ended.Forced || s.ExitRecord().WasForced()
	return ended
}

// replaceSilentSupervisor ends the supervisor of a machine that has not answered, so that the next call starts another.
// Nothing watches machines while their host shuts down, and QEMU quits by its supervisor alone.
func replaceSilentSupervisor(ctx context.Context, s *instance.Instance) {
	c, err := s.Supervisor().Reach(ctx)
	if err == nil {
		s.Host.Log.Info("Supervisor does not answer, and is replaced", "uid", s.UID)
		err = s.Supervisor().Replace(ctx, c.Token())
	}
	if err != nil {
		s.Host.Log.Info("Supervisor of a machine cannot be replaced", "uid", s.UID, "cause", err.Error())
	}
}

// recordShutdown records, before the run ends, why it ends and that it is being stopped, so
// that a driver which starts meanwhile completes the stop. It returns how long the guest
// has, which an earlier stop may already limit. For a released server no exit is
// recorded.
func recordShutdown(inst *instance.Instance, within time.Duration) time.Duration {
	if inst.Broken != nil {
		return within
	}
	now := inst.Host.Clock.Now()
	if !inst.Retained {
		_, _ = inst.ExitRecord().RecordExit(driver.Exit{Reason: driver.ExitHostShutdown, At: now})
	}
	if inst.Stop != nil && !inst.Stop.By.IsZero() && inst.Stop.By.Before(now.Add(within)) {
		return inst.Stop.By.Sub(now)
	}
	inst.Stop = &record.Stop{By: now.Add(within)}
	if err := inst.Save(); err != nil {
		inst.Host.Log.Info("Machine is stopped, and that cannot be written down", "uid", inst.UID, "cause", err.Error())
	}
	return within
}

// waitOff has the guest shut down, and reports whether it has in time. It asks again and again, since a supervisor may
// be killed, or not have come up, and nothing watches machines while their host shuts down.
func waitOff(ctx context.Context, inst *instance.Instance, within time.Duration) bool {
	by := inst.Host.Clock.Now().Add(within)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := inst.Calls().Shutdown(ctx, by, inst.Host.Clock.Now()); err != nil && ctx.Err() == nil {
			inst.Host.Log.Info("Machine is without a supervisor: its power button is pressed once", "uid", inst.UID, "cause", err.Error())
			_ = inst.Machine.Execute(ctx, "system_powerdown", nil, nil)
			if errors.Is(err, context.DeadlineExceeded) {
				replaceSilentSupervisor(ctx, inst)
			}
		}
		switch err := inst.Machine.WaitStopped(ctx, machine.CommandWithin); {
		case err == nil:
			return true
		case ctx.Err() != nil, !errors.Is(err, context.DeadlineExceeded):
			return false
		}
	}
}

const defaultGrace = 30 * time.Second

// gracePeriod returns how long the guest of a server has to power off.
func gracePeriod(inst *instance.Instance) time.Duration {
	switch {
	case inst.RunState == machine.StatusPrelaunch:
		return 0 // it has not run yet
	case inst.ID == "": // the record cannot be read
		return defaultGrace
	}
	return time.Duration(inst.GraceSeconds) * time.Second
}
