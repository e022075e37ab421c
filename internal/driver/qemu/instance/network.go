// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
)

// networkConfig returns the configuration of the machine's edge, but for its egress.
func (inst *Instance) networkConfig() control.NetworkConfig {
	return control.NetworkConfig{
		MAC: launch.MACAddress(inst.UUID), Address: inst.Address, MTU: control.GuestMTU,
		Hostname: inst.Name, Domain: inst.Namespace + "." + control.InternalDomain,
	}
}

// findEgress returns where guests may connect to. Unless the operator names resolvers, they are the host's of now.
// If there are none, an error comes with what is allowed. Whoever only shuts machines down does not know that.
func (h *Host) findEgress() (e control.Egress, err error) {
	if h.Addresses == nil {
		return control.Egress{Deny: true}, nil
	}
	e = h.EgressPolicy
	e.Denied = append(slices.Clone(e.Denied), h.Addresses.Range) // for machines that have an address of an earlier range
	if len(e.Resolvers) == 0 {
		e.Resolvers, _, err = control.ReadResolvers()
	}
	return e, err
}

// servePorts makes the supervisor serve the host ports of the record. Ports that it does not serve yet and that have no
// socket among sockets are opened.
func (inst *Instance) servePorts(ctx context.Context, c *control.Client, sockets hostports.Sockets) error {
	keys := hostports.KeysOf(inst.Forwards)
	missing, err := c.SetPorts(ctx, inst.PortsGeneration, keys, nil)
	if err != nil || len(missing) == 0 {
		return err
	}
	given, opened := hostports.Sockets{}, hostports.Sockets{}
	defer opened.Close()
	var taken error
	for _, key := range missing {
		if sockets[key] != nil {
			given[key] = sockets[key]
			continue
		}
		socket, _, err := control.Listen(ctx, key)
		if err != nil { // the others are served all the same
			taken = driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "host port %d/%s is not available any more: %w", key.HostPort, key.Protocol, err))
			continue
		}
		opened[key], given[key] = socket, socket
	}
	if _, err = c.SetPorts(ctx, inst.PortsGeneration, keys, given); err != nil {
		return err
	}
	return taken
}

// lacks reports whether the supervisor could not be given a host port, because another program has taken it.
func (inst *Instance) lacks(f hostports.Forward) bool { return slices.Contains(inst.lacking, f.Key()) }

// LacksPorts reports whether host ports of the record are not served.
func (inst *Instance) LacksPorts() bool { return slices.ContainsFunc(inst.Forwards, inst.lacks) }

// restorePorts has a supervisor that takes the place of another serve the host ports. Those that cannot be had are
// tried again by whoever sees that it lacks them.
func (inst *Instance) restorePorts(ctx context.Context, c *control.Client) {
	now, err := inst.Load()
	if err == nil && now.Phase == record.PhaseOn { // else the start of the run is to serve them
		err = now.servePorts(ctx, c, nil)
	}
	if err != nil {
		inst.Host.Log.Info("Machine lacks host ports", "uid", inst.UID, "cause", err.Error())
	}
}

// ChangePorts makes the host ports of a machine that runs those of its spec. Ports that stay keep their connections. If
// its record has them already, only those are opened that its supervisor lacks.
func (inst *Instance) ChangePorts(ctx context.Context, spec driver.ServerSpec) error {
	if spec.PowerOnly || HasPortsOf(inst.Record, spec) {
		return inst.call(ctx, "ports", func(ctx context.Context, c *control.Client) error { return inst.servePorts(ctx, c, nil) })
	}
	forwards, sockets, err := hostports.OpenForwards(ctx, spec.Ports, inst.Forwards, true, inst.Host.OpenPort)
	if err != nil {
		return err
	}
	defer sockets.Close()
	inst.setForwards(forwards) // so that a call that is interrupted can be repeated: the machine may have some of them
	if err := inst.Save(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	err = inst.call(ctx, "ports", func(ctx context.Context, c *control.Client) error { return inst.servePorts(ctx, c, sockets) })
	if err != nil {
		return err
	}
	inst.Settings.Ports = spec.Ports
	return inst.Host.StateDir.Explain(inst.Save())
}

func (inst *Instance) setForwards(forwards []hostports.Forward) {
	inst.Forwards = forwards
	inst.PortsGeneration++
}

// HasPortsOf reports whether a server has the host ports of a spec.
func HasPortsOf(r record.Record, spec driver.ServerSpec) bool {
	return slices.EqualFunc(r.Settings.Ports, spec.Ports, hostports.IsSamePort)
}
