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
	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/supervised"
)

// Calls makes calls to a machine's supervisor. If the supervisor does not run, a call starts it.
type Calls struct {
	machine supervised.Machine
	epoch   uint64 // of the leader that calls, 0 if no leader does
}

// SupervisorCalls returns the calls to the server's supervisor, with the epoch of the leader that changes the server.
func (inst *Instance) SupervisorCalls() Calls { return Calls{inst.Supervisor(), inst.Leader} }

// callSupervisor makes one call to the supervisor. After etcd or the folder was restored from a backup, the supervisor may
// know a later leader than the folder, or a later revision than the record. It is then replaced, since the folder has
// admitted this leader, which holds the server's lock.
func (c Calls) callSupervisor(ctx context.Context, action string, do func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	client, err := c.machine.Reach(ctx)
	if err != nil {
		return ContractError(err)
	}
	client.SetEpoch(c.epoch)
	point := crashpoint.Begin("machine "+action, c.machine.Machine.Mark)
	err = point.Inject(func(ctx context.Context) error { return do(ctx, client) })(ctx)
	point.End()
	switch {
	case errors.Is(err, failure.ErrFenced), errors.Is(err, failure.ErrStale):
		err = errors.Join(err, c.machine.Replace(ctx, client.Token()))
	case errors.Is(err, failure.ErrProtocol): // a supervisor of another version may not understand the call
		_, replaceErr := c.machine.ReplaceOutdated(ctx, client.Token())
		err = errors.Join(err, replaceErr)
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

// Shutdown makes the supervisor press the power button until the guest has ended, and force the end at the deadline. A
// zero deadline means never.
func (c Calls) Shutdown(ctx context.Context, deadline, now time.Time) error {
	id, timeout := stopIDAndTimeout(deadline, now)
	return c.pressButton(ctx, id, timeout)
}

// pressButton begins the stop with an ID, which is forced after timeout. Repeated calls for an ID keep the first timeout.
func (c Calls) pressButton(ctx context.Context, id string, timeout time.Duration) error {
	return c.callSupervisor(ctx, "stop", func(ctx context.Context, client *control.Client) error { return client.Stop(ctx, id, timeout) })
}

func (c Calls) quitQEMU(ctx context.Context) error {
	return c.callSupervisor(ctx, "quit", func(ctx context.Context, client *control.Client) error { return client.Quit(ctx) })
}

// observed is the state of a QEMU and its supervisor, as they report it.
type observed struct {
	// On is set if QEMU runs, even if its guest has ended.
	On bool
	// RunState is QEMU's run state; empty if unknown, for the reason in QueryErr.
	RunState string
	QueryErr error
	// GuestMemoryBytes is the memory use that the guest reports; 0 if unknown.
	GuestMemoryBytes int64
	// edge is the supervisor's report of its edge.
	edge edgeReport
	// health is the supervisor's report of the image's health check.
	health health.State
	// fault is the disk error that has paused the guest, or nil.
	fault error
	// isBooting is set until the guest of a container image has reported the start of its command.
	isBooting bool
}

// isOn reports whether the QEMU of a machine runs. On an error it returns true, so that a
// server is never wrongly reported as off.
func isOn(m machine.Machine) (bool, error) {
	on, err := m.IsRunning()
	return on || err != nil, wrapBroken("repair "+m.File(machine.RunLockFile), err)
}

// observeQEMU finds out whether QEMU runs, and asks the supervisor for its run state.
func (c Calls) observeQEMU(ctx context.Context, within time.Duration) (o observed, err error) {
	if o.On, err = isOn(c.machine.Machine); err != nil || !o.On {
		return o, err
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var status control.Status
	status, o.QueryErr = c.queryStatus(bounded)
	o.RunState, o.GuestMemoryBytes, o.health = status.RunState, status.GuestMemoryBytes, status.Health
	if status.State != "" { // the supervisor has answered
		o.edge = edgeReport{true, status.Wanted, status.ServedPorts}
	}
	if o.RunState == machine.StatusIOError {
		o.fault = ContractError(machine.DiskFault{Node: status.Fault.Node, Operation: status.Fault.Operation, Reason: status.Fault.Reason}.Explain())
	}
	_, hasEnded := exits.OfState(o.RunState)
	if ctx.Err() != nil || bounded.Err() != nil || o.QueryErr == nil && !hasEnded {
		return o, ctx.Err()
	}
	// Either QEMU has ended, or the supervisor is making QEMU quit.
	if c.machine.Machine.WaitStopped(ctx, GoneWithin) == nil {
		o.On, o.QueryErr = false, nil
	}
	return o, ctx.Err()
}

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
