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
	// is changing. After that it continues without the lock, since the guest would lose
	// more in a power cut.
	lockWithin = 5 * time.Second
	// EndWithin is the longest time that ShutDown takes beyond its limit.
	EndWithin = machine.CommandWithin + instance.GoneWithin + lockWithin + machine.QuitWithin + 2*proc.KillWithin
)

// ShutdownResult tells how ShutDown has ended a machine, or why it could not.
type ShutdownResult struct {
	Namespace, Name string
	// Forced is set if the guest did not power off in time, and was ended by force.
	Forced bool
	// Err is why the machine still runs.
	Err error
}

// ShutDown ends all machines in the folder o.Dir, for a host that is about to shut down:
// those of every cluster, and those that were retained when their VM was deleted. Each run
// gets the exit reason driver.ExitHostShutdown. The power button of each guest is pressed,
// the guest has its grace period, at most limit, to power off, and then its QEMU is ended.
// If ShutDown is interrupted, the next ShutDown or driver continues from the records.
//
// All machines stay locked until the last one has ended, so that no controller starts one
// again meanwhile.
func ShutDown(ctx context.Context, o Options, limit time.Duration) ([]*ShutdownResult, error) {
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
	locks, ended := make([]*statedir.Lock, len(instances)), make([]*ShutdownResult, len(instances))
	var all sync.WaitGroup
	for i, inst := range instances {
		all.Go(func() {
			locks[i] = lockForShutdown(ctx, inst)
			ended[i] = shutDownMachine(ctx, inst, limit)
		})
	}
	all.Wait()
	for _, lock := range slices.DeleteFunc(locks, func(l *statedir.Lock) bool { return l == nil }) {
		lock.Release()
	}
	return slices.DeleteFunc(ended, func(e *ShutdownResult) bool { return e == nil }), nil
}

// lockForShutdown takes the lock of a server that is to end, or returns nil. A retained server
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
			inst.Host.Log.Info("Machine cannot be locked, and is shut down without its lock", "uid", inst.UID, "cause", err.Error())
			return nil
		}
	}
}

// shutDownMachine ends one machine, even if its record cannot be read or written. It returns nil if
// the machine did not run.
func shutDownMachine(ctx context.Context, inst *instance.Instance, limit time.Duration) *ShutdownResult {
	s, err := inst.Observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !s.On:
		return nil
	case err != nil && !instance.IsBroken(err):
		return &ShutdownResult{Name: string(inst.UID), Err: err}
	}
	ended := &ShutdownResult{Namespace: s.Namespace, Name: cmp.Or(s.Name, string(s.UID))}
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
// Nothing watches machines while their host shuts down, and QEMU quits only when its supervisor tells it to.
func replaceSilentSupervisor(ctx context.Context, inst *instance.Instance) {
	c, err := inst.Supervisor().Reach(ctx)
	if err == nil {
		inst.Host.Log.Info("Supervisor does not answer, and is replaced", "uid", inst.UID)
		err = inst.Supervisor().Replace(ctx, c.Token())
	}
	if err != nil {
		inst.Host.Log.Info("Supervisor of a machine cannot be replaced", "uid", inst.UID, "cause", err.Error())
	}
}

// recordShutdown records, before the run ends, why it ends and that it is being stopped, so
// that a driver which starts meanwhile completes the stop. It returns how long the guest
// has, which may be less if an earlier stop is in progress. For a retained server no exit
// is recorded.
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
		inst.Host.Log.Info("Stop of a machine cannot be recorded", "uid", inst.UID, "cause", err.Error())
	}
	return within
}

// waitOff makes the guest shut down, and reports whether it did so in time. It asks again and again, since a supervisor
// may be killed, or may not be up yet, and nothing watches machines while their host shuts down.
func waitOff(ctx context.Context, inst *instance.Instance, within time.Duration) bool {
	deadline := inst.Host.Clock.Now().Add(within)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := inst.SupervisorCalls().Shutdown(ctx, deadline, inst.Host.Clock.Now()); err != nil && ctx.Err() == nil {
			inst.Host.Log.Info("Supervisor cannot stop the machine: the power button is pressed without it", "uid", inst.UID, "cause", err.Error())
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
