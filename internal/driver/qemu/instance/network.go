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
func (h *Host) findEgress() control.Egress {
	e := h.EgressPolicy
	e.Denied = append(slices.Clone(e.Denied), h.Addresses.Range) // for machines that have an address of an earlier range
	if len(e.Resolvers) > 0 {
		return e
	}
	var err error
	if e.Resolvers, err = control.ReadResolvers(); err != nil {
		h.Log.Info("Guests have no names of the outside", "cause", err.Error())
	}
	return e
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
	for _, key := range missing {
		if given[key] = sockets[key]; given[key] != nil {
			continue
		}
		socket, _, err := control.Listen(ctx, key)
		if err != nil {
			return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "host port %d/%s is not available any more: %w", key.HostPort, key.Protocol, err))
		}
		opened[key], given[key] = socket, socket
	}
	_, err = c.SetPorts(ctx, inst.PortsGeneration, keys, given)
	return err
}

// restorePorts has a supervisor that takes the place of another serve the host ports.
func (inst *Instance) restorePorts(ctx context.Context, c *control.Client) {
	now, err := inst.Load()
	if err == nil && now.Phase == record.PhaseOn { // else the start of the run is to serve them
		err = now.servePorts(ctx, c, nil)
	}
	if err != nil {
		inst.Host.Log.Info("Machine lacks host ports", "uid", inst.UID, "cause", err.Error())
	}
}

// ChangePorts makes the host ports of a machine that runs those of its spec. Ports that stay keep their connections.
func (inst *Instance) ChangePorts(ctx context.Context, spec driver.ServerSpec) error {
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
