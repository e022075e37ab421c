// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest reaches what runs in the machines of the qemu driver: consoles, logs, commands,
// ports and network interfaces. It changes no server, and takes no lock of one.
//
// Start with Guests.
package guest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"net"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/guests"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
)

// Guests are the guests of the machines of a host.
type Guests struct {
	guests.Guests

	host *instance.Host
}

// New returns the guests of a host.
func New(host *instance.Host) *Guests {
	g := &Guests{host: host}
	g.Reach = g.clientOf
	return g
}

// clientOf returns a client of the supervisor of a server that runs.
func (g *Guests) clientOf(ctx context.Context, uid types.UID) (*control.Client, error) {
	s, err := g.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return s.Supervisor().Reach(ctx)
}

// Logs implements driver.LogReader. The log of a container image has the output of one run, and a serial console's that of
// all runs.
func (g *Guests) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s, err := g.findServer(ctx, uid, (*instance.Instance).Load)
	if err != nil {
		return nil, err
	}
	if s.Guest != nil && s.Guest.Output != nil {
		return g.openOutput(ctx, s, o)
	}
	log, err := s.Machine.OpenLog(ctx, machine.LogOptions{Follow: o.Follow, Previous: o.Previous, TailLines: o.TailLines})
	return log, classifyError(ctx, err)
}

// findServer returns a server of this cluster as look finds it.
func (g *Guests) findServer(ctx context.Context, uid types.UID, look func(*instance.Instance) (*instance.Instance, error)) (*instance.Instance, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	if err := record.CheckUID(uid); err != nil {
		return nil, err
	}
	if err := g.host.StateDir.Reach(); err != nil {
		return nil, err
	}
	s, err := look(g.host.InstanceOf(uid))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (s.ClusterID != g.host.ClusterID || s.Retained):
		return nil, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	case err != nil:
		return nil, instance.ClassifyObserveError(err)
	}
	return s, nil
}

// findRunning returns a server whose guest runs, or could continue.
func (g *Guests) findRunning(ctx context.Context, uid types.UID) (*instance.Instance, error) {
	s, err := g.findServer(ctx, uid, func(inst *instance.Instance) (*instance.Instance, error) { return inst.Observe(ctx) })
	if err == nil && !s.IsAlive() {
		err = driver.Errorf(driver.ErrRetry, "the server %s does not run", uid)
	}
	return s, err
}

// Probe implements driver.Prober, by the machine's supervisor, which is the guest's end of the network.
func (g *Guests) Probe(ctx context.Context, uid types.UID, port int32) error {
	c, err := g.reachPort(ctx, uid, port)
	if err != nil {
		return err
	}
	return explainPort(ctx, port, c.Probe(ctx, port))
}

// reachPort is reach for a port of the guest.
func (g *Guests) reachPort(ctx context.Context, uid types.UID, port int32) (*control.Client, error) {
	if port < 1 || port > math.MaxUint16 {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be from 1 to %d", port, math.MaxUint16)
	}
	return g.clientOf(ctx, uid)
}

// explainPort names the port that a guest has not answered at. The time of ctx limits the wait for the guest.
func explainPort(ctx context.Context, port int32, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return driver.Errorf(driver.ErrRetry, "port %d of the guest took no connection: %w", port, ctx.Err())
	}
	return driver.Errorf(driver.ErrRetry, "port %d of the guest: %w", port, err)
}

// Dial implements driver.Dialer, as Probe does.
func (g *Guests) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	c, err := g.reachPort(ctx, uid, port)
	if err != nil {
		return nil, err
	}
	conn, err := c.DialGuest(ctx, uint16(port)) //nolint:gosec // a port
	if err != nil {
		return nil, explainPort(ctx, port, err)
	}
	return conn, nil
}

// classifyError gives an error of a call that changes nothing its kind in the contract.
func classifyError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if kind := instance.ContractError(err); kind != err { //nolint:errorlint // unchanged
		return kind
	}
	return driver.Errorf(driver.ErrRetry, "%w", err)
}
