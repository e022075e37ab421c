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

// Edge is the machine's end of the network: as the record of its server has it, and as its supervisor reports it.
type Edge struct {
	host   *Host
	record *record.Record
	report *edgeReport
	epoch  uint64 // of the leader that changes the server
	save   func() error
	calls  func() Calls
}

// Edge returns the edge of the server's machine.
func (inst *Instance) Edge() Edge {
	return Edge{inst.Host, &inst.Record, &inst.edge, inst.Leader, inst.Save, inst.Calls}
}

// config returns what a supervisor is started with.
func (e Edge) config(uuid string) control.NetworkConfig {
	return control.NetworkConfig{
		MAC: launch.MACAddress(uuid), Address: e.record.Address, MTU: control.GuestMTU,
		Hostname: e.record.Name, Domain: e.record.Namespace + "." + control.InternalDomain, Wanted: e.wanted(),
	}
}

// wanted returns the edge that the machine should have. A record of a version without revisions lacks the egress: until
// the leader has recorded one, the egress is the one that this process allows.
func (e Edge) wanted() control.Wanted {
	w := control.Wanted{Revision: e.record.NetworkRevision, Ports: hostports.KeysOf(e.record.Forwards), Egress: e.record.Egress}
	if w.Revision == (control.Revision{}) {
		w.Egress = e.allowedEgress()
	}
	return w
}

// allowedEgress returns where this process lets the guest connect to. If the host's resolvers cannot be found, those that
// are recorded stay.
func (e Edge) allowedEgress() control.Egress {
	allowed, err := e.host.findEgress()
	if err != nil {
		allowed.Resolvers = e.record.Egress.Resolvers
	}
	return allowed
}

// hasAllowedEgress reports whether the recorded egress is the one that this process allows.
func (e Edge) hasAllowedEgress() bool { return e.record.Egress.Equal(e.allowedEgress()) }

// setWanted records the ports and the allowed egress as what the machine should have, and reports whether it had others.
func (e Edge) setWanted(forwards []hostports.Forward) (changed bool) {
	egress := e.allowedEgress()
	if e.record.NetworkRevision != (control.Revision{}) && slices.Equal(e.record.Forwards, forwards) && e.record.Egress.Equal(egress) {
		return false
	}
	e.record.Forwards, e.record.Egress, e.record.NetworkRevision = forwards, egress, e.record.NetworkRevision.Next(e.epoch)
	return true
}

// findEgress returns where guests may connect to. Unless the operator names resolvers, they are the present ones of
// the host; without any, findEgress returns the rest and an error. A process that only shuts machines down allows nothing.
func (h *Host) findEgress() (allowed control.Egress, err error) {
	if h.Addresses == nil {
		return control.Egress{Deny: true}, nil
	}
	allowed = h.EgressPolicy
	allowed.Denied = append(slices.Clone(allowed.Denied), h.Addresses.Range) // for machines that have an address of an earlier range
	if len(allowed.Resolvers) == 0 {
		allowed.Resolvers, _, err = control.ReadResolvers()
	}
	return allowed, err
}

// edgeReport is a supervisor's report of its edge.
type edgeReport struct {
	isKnown bool // the supervisor has answered
	wanted  control.Revision
	ports   []control.Port
}

// servesPort reports whether the supervisor says that it serves a host port.
func (r edgeReport) servesPort(f hostports.Forward) bool { return slices.Contains(r.ports, f.Key()) }

// NeedsChange reports whether the edge of a machine that runs differs from the record, or the record from the egress that
// this process allows. The former is not known while the supervisor does not answer.
func (e Edge) NeedsChange() bool {
	lacks := func(f hostports.Forward) bool { return !e.report.servesPort(f) }
	return e.NeedsEgress() || e.report.isKnown && slices.ContainsFunc(e.record.Forwards, lacks)
}

// NeedsEgress is NeedsChange without regard to the sockets of ports.
func (e Edge) NeedsEgress() bool {
	return e.record.NetworkRevision == (control.Revision{}) || !e.hasAllowedEgress() ||
		e.report.isKnown && e.report.wanted != e.record.NetworkRevision
}

// ConvergeEgress gives the edge of a machine that runs the egress that this process allows, and the recorded ports. It
// records them first, since a supervisor starts with the record. If they cannot be recorded, as on a full disk, an egress
// that only closes something is still sent to the supervisor.
func (e Edge) ConvergeEgress(ctx context.Context) (err error) {
	before := e.record.Egress
	if e.setWanted(e.record.Forwards) {
		err = e.host.StateDir.Explain(e.save())
	}
	if err != nil && !e.record.Egress.IsWithin(before) {
		return err
	}
	return cmp.Or(err, e.calls().callSupervisor(ctx, "egress", func(ctx context.Context, c *control.Client) error {
		wanted := e.wanted()
		served, err := c.SetWanted(ctx, wanted)
		if err == nil {
			*e.report = edgeReport{true, wanted.Revision, served}
		}
		return err
	}))
}

// Converge gives the edge of a machine that runs the ports of the spec and the egress that this process allows. It
// records them first, since a supervisor starts with the record. Ports that stay keep their connections, and a port that
// cannot be opened does not delay the others.
func (e Edge) Converge(ctx context.Context, spec driver.ServerSpec) error {
	forwards, sockets, conflict := e.findForwards(ctx, spec)
	defer sockets.Close()
	if e.setWanted(forwards) {
		if !spec.PowerOnly && conflict == nil {
			e.record.Settings.Ports = spec.Ports
		}
		if err := e.save(); err != nil {
			return e.host.StateDir.Explain(err)
		}
	}
	return cmp.Or(e.servePorts(ctx, sockets), conflict)
}

// findForwards returns the host ports of a spec, and the sockets of those that it has opened. If the machine cannot have
// them, those that it has stay.
func (e Edge) findForwards(ctx context.Context, spec driver.ServerSpec) ([]hostports.Forward, hostports.Sockets, error) {
	if spec.PowerOnly || HasPortsOf(*e.record, spec) {
		return e.record.Forwards, nil, nil
	}
	forwards, sockets, err := hostports.OpenForwards(ctx, spec.Ports, e.record.Forwards, true, e.host.OpenPort)
	if err != nil {
		return e.record.Forwards, nil, err
	}
	return forwards, sockets, nil
}

// servePorts configures the edge as recorded. It opens the ports that the edge does not serve yet and that are not among
// sockets.
func (e Edge) servePorts(ctx context.Context, sockets hostports.Sockets) error {
	return e.calls().callSupervisor(ctx, "network", func(ctx context.Context, c *control.Client) error {
		wanted := e.wanted()
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
