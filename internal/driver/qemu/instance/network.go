// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
)

// networkConfig returns the configuration of the machine's edge.
func (inst *Instance) networkConfig() control.NetworkConfig {
	return control.NetworkConfig{
		MAC: launch.MACAddress(inst.UUID), Address: inst.Address, MTU: control.GuestMTU,
		Hostname: inst.Name, Domain: inst.Namespace + "." + control.InternalDomain, Wanted: inst.wantedEdge(),
	}
}

// wantedEdge returns the edge that the machine should have. A record of a version without revisions lacks the egress: until
// the leader has recorded one, the egress is the one that this process allows.
func (inst *Instance) wantedEdge() control.Wanted {
	w := control.Wanted{Revision: inst.NetworkRevision, Ports: hostports.KeysOf(inst.Forwards), Egress: inst.Egress}
	if w.Revision == (control.Revision{}) {
		w.Egress = inst.wantedEgress()
	}
	return w
}

// wantedEgress returns where this process lets the guest connect to. If the host's resolvers cannot be found, those that
// are recorded stay.
func (inst *Instance) wantedEgress() control.Egress {
	e, err := inst.Host.findEgress()
	if err != nil {
		e.Resolvers = inst.Egress.Resolvers
	}
	return e
}

// setWanted changes the edge that the machine should have, and reports whether it was a different one.
func (inst *Instance) setWanted(forwards []hostports.Forward, egress control.Egress) (changed bool) {
	if inst.NetworkRevision != (control.Revision{}) && slices.Equal(inst.Forwards, forwards) && inst.Egress.Equal(egress) {
		return false
	}
	inst.Forwards, inst.Egress, inst.NetworkRevision = forwards, egress, inst.NetworkRevision.Next(inst.Leader)
	return true
}

// findEgress returns where guests may connect to. Unless the operator names resolvers, they are the present ones of
// the host; without any, findEgress returns the rest and an error. A process that only shuts machines down allows nothing.
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

// edgeReport is a supervisor's report of its edge.
type edgeReport struct {
	wanted control.Revision
	ports  []control.Port
}

// servesPort reports whether the supervisor says that it serves a host port.
func (inst *Instance) servesPort(f hostports.Forward) bool {
	return inst.edge != nil && slices.Contains(inst.edge.ports, f.Key())
}

// NeedsNetwork reports whether the edge of a machine that runs differs from the record, or the record from the egress that
// this process allows. The former is not known while the supervisor does not answer.
func (inst *Instance) NeedsNetwork() bool {
	lacks := func(f hostports.Forward) bool { return !inst.servesPort(f) }
	return inst.NeedsEgress() || inst.edge != nil && slices.ContainsFunc(inst.Forwards, lacks)
}

// NeedsEgress is NeedsNetwork without regard to the sockets of ports.
func (inst *Instance) NeedsEgress() bool {
	return inst.NetworkRevision == (control.Revision{}) || !inst.Egress.Equal(inst.wantedEgress()) ||
		inst.edge != nil && inst.edge.wanted != inst.NetworkRevision
}

// ConvergeEgress gives the edge of a machine that runs the egress that this process allows, and the recorded ports. It
// records them first, since a supervisor starts with the record. If they cannot be recorded, as on a full disk, an egress
// that only closes something is still sent to the supervisor.
func (inst *Instance) ConvergeEgress(ctx context.Context) (err error) {
	egress := inst.wantedEgress()
	narrows := egress.IsWithin(inst.Egress)
	if inst.setWanted(inst.Forwards, egress) {
		err = inst.Host.StateDir.Explain(inst.Save())
	}
	if err != nil && !narrows {
		return err
	}
	return cmp.Or(err, inst.callSupervisor(ctx, "egress", func(ctx context.Context, c *control.Client) error {
		wanted := inst.wantedEdge()
		served, err := c.SetWanted(ctx, wanted)
		if err == nil {
			inst.edge = &edgeReport{wanted.Revision, served}
		}
		return err
	}))
}

// ConvergeNetwork gives the edge of a machine that runs the ports of the spec and the egress that this process allows. It
// records them first, since a supervisor starts with the record. Ports that stay keep their connections, and a port that
// cannot be opened does not delay the others.
func (inst *Instance) ConvergeNetwork(ctx context.Context, spec driver.ServerSpec) error {
	forwards, sockets, conflict := inst.findForwards(ctx, spec)
	defer sockets.Close()
	if inst.setWanted(forwards, inst.wantedEgress()) {
		if !spec.PowerOnly && conflict == nil {
			inst.Settings.Ports = spec.Ports
		}
		if err := inst.Save(); err != nil {
			return inst.Host.StateDir.Explain(err)
		}
	}
	return cmp.Or(inst.serveNetwork(ctx, sockets), conflict)
}

// findForwards returns the host ports of a spec, and the sockets of those that it has opened. If the machine cannot have
// them, those that it has stay.
func (inst *Instance) findForwards(ctx context.Context, spec driver.ServerSpec) ([]hostports.Forward, hostports.Sockets, error) {
	if spec.PowerOnly || HasPortsOf(inst.Record, spec) {
		return inst.Forwards, nil, nil
	}
	forwards, sockets, err := hostports.OpenForwards(ctx, spec.Ports, inst.Forwards, true, inst.Host.OpenPort)
	if err != nil {
		return inst.Forwards, nil, err
	}
	return forwards, sockets, nil
}

// serveNetwork configures the edge as recorded. It opens the ports that the edge does not serve yet and that are not among
// sockets.
func (inst *Instance) serveNetwork(ctx context.Context, sockets hostports.Sockets) error {
	return inst.callSupervisor(ctx, "network", func(ctx context.Context, c *control.Client) error {
		wanted := inst.wantedEdge()
		served, err := c.SetWanted(ctx, wanted)
		if err != nil {
			return err
		}
		given, opened := hostports.Sockets{}, hostports.Sockets{}
		defer opened.Close()
		var taken error
		for _, key := range wanted.Ports {
			switch socket := sockets[key]; {
			case slices.Contains(served, key):
				continue
			case socket != nil:
				given[key] = socket
				continue
			}
			socket, _, err := control.Listen(ctx, key)
			if err != nil { // the others are served all the same
				taken = driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "host port %d/%s is not available any more: %w", key.HostPort, key.Protocol, err))
				continue
			}
			opened[key], given[key] = socket, socket
		}
		return cmp.Or(c.GiveSockets(ctx, wanted.Revision, given), taken)
	})
}

// HasPortsOf reports whether a server has the host ports of a spec.
func HasPortsOf(r record.Record, spec driver.ServerSpec) bool {
	return slices.EqualFunc(r.Settings.Ports, spec.Ports, hostports.IsSamePort)
}
