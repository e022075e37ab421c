// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/supervised"
)

// Calls are the calls of a machine's supervisor, which is started if there is none.
type Calls struct {
	machine supervised.Machine
	epoch   uint64 // of the leader that calls, 0 if no leader does
}

// Calls returns the calls of the server's supervisor, by the leader that changes the server.
func (inst *Instance) Calls() Calls { return Calls{inst.Supervisor(), inst.Leader} }

// callSupervisor has the supervisor do something. One that knows a later leader than the driver's folder, or a later revision than
// the record, as after a restored etcd or folder, is replaced: the folder has admitted this leader, which holds the
// server's lock.
func (c Calls) callSupervisor(ctx context.Context, action string, do func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	client, err := c.machine.Reach(ctx)
	if err != nil {
		return ContractError(err)
	}
	client.SetEpoch(c.epoch)
	point := crashpoint.Begin("machine "+action, c.machine.Machine.UUID)
	err = point.Inject(func(ctx context.Context) error { return do(ctx, client) })(ctx)
	point.End()
	switch {
	case errors.Is(err, failure.ErrFenced), errors.Is(err, failure.ErrStale):
		err = errors.Join(err, c.machine.Replace(ctx, client.Token()))
	case errors.Is(err, failure.ErrProtocol): // which that of another version may not understand
		_, stays := c.machine.ReplaceOutdated(ctx, client.Token())
		err = errors.Join(err, stays)
	}
	return ContractError(err)
}

// Pause halts the guest.
func (c Calls) Pause(ctx context.Context) error {
	return c.callSupervisor(ctx, "pause", func(ctx context.Context, client *control.Client) error { return client.Pause(ctx) })
}

func (c Calls) startGuest(ctx context.Context) error {
	return c.callSupervisor(ctx, "start", func(ctx context.Context, client *control.Client) error { return client.Start(ctx) })
}

func (c Calls) resumeGuest(ctx context.Context) error {
	return c.callSupervisor(ctx, "resume", func(ctx context.Context, client *control.Client) error { return client.Resume(ctx) })
}

// Shutdown has the supervisor press the power button until the guest has ended, and end the run by force at a
// time; zero means never.
func (c Calls) Shutdown(ctx context.Context, deadline, now time.Time) error {
	id, within := stopOf(deadline, now)
	return c.pressButton(ctx, id, within)
}

// pressButton is Shutdown for a stop of an ID. One that the supervisor has begun keeps its time.
func (c Calls) pressButton(ctx context.Context, id string, within time.Duration) error {
	return c.callSupervisor(ctx, "stop", func(ctx context.Context, client *control.Client) error { return client.Stop(ctx, id, within) })
}

func (c Calls) quitQEMU(ctx context.Context) error {
	return c.callSupervisor(ctx, "quit", func(ctx context.Context, client *control.Client) error { return client.Quit(ctx) })
}

// observed is the state of a QEMU and its supervisor, as they report it.
type observed struct {
	// On reports whether QEMU runs, even if the guest in it has ended.
	On bool
	// RunState is QEMU's run state, empty if it is not known; QueryErr says why.
	RunState string
	QueryErr error
	// GuestMemoryBytes is the memory that the guest reports to use, 0 if it does not report that.
	GuestMemoryBytes int64
	// edge is the supervisor's report of its edge.
	edge edgeReport
	// fault is the disk error that the guest waits for, if there is one.
	fault error
}

// isOn reports whether the QEMU of a machine runs. Where that cannot be determined, it
// counts as on, so that a server is never wrongly reported as off.
func isOn(m machine.Machine) (bool, error) {
	on, err := m.IsRunning()
	return on || err != nil, wrapBroken("repair "+m.File(machine.RunLockFile), err)
}

// observeQEMU finds out whether QEMU runs, and queries its run state.
func (c Calls) observeQEMU(ctx context.Context, within time.Duration) (o observed, err error) {
	if o.On, err = isOn(c.machine.Machine); err != nil || !o.On {
		return o, err
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var status control.Status
	status, o.QueryErr = c.queryStatus(bounded)
	o.RunState, o.GuestMemoryBytes = status.RunState, status.GuestMemoryBytes
	if status.State != "" { // else the supervisor has not answered
		o.edge = edgeReport{true, status.Wanted, status.ServedPorts}
	}
	if o.RunState == machine.StatusIOError {
		o.fault = ContractError(machine.DiskFault{Node: status.Fault.Node, Operation: status.Fault.Operation, Reason: status.Fault.Reason}.Explain())
	}
	_, hasEnded := exits.OfState(o.RunState)
	if ctx.Err() != nil || bounded.Err() != nil || o.QueryErr == nil && !hasEnded {
		return o, ctx.Err()
	}
	// The QEMU of its supervisor has ended, or is made to quit.
	if c.machine.Machine.WaitStopped(ctx, GoneWithin) == nil {
		o.On, o.QueryErr = false, nil
	}
	return o, ctx.Err()
}

// queryStatus asks the supervisor what its machine does.
func (c Calls) queryStatus(ctx context.Context) (s control.Status, err error) {
	client, err := c.machine.Reach(ctx)
	if err != nil {
		return s, err
	}
	if s, err = client.Status(ctx); err != nil {
		return s, fmt.Errorf("querying the machine: %w", err)
	}
	return s, nil
}
