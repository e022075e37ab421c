// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"net"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/control"
)

// Edge is a machine's gateway to the host's network, which its supervisor runs: as recorded and as reported.
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
	return Edge{inst.Host, &inst.Record, &inst.edge, inst.Leader, inst.Save, inst.SupervisorCalls}
}

// config returns the network configuration that a supervisor is started with.
func (e Edge) config() control.NetworkConfig {
	mac, _ := net.ParseMAC(e.record.MAC) // checked when the record was read
	return control.NetworkConfig{
		MAC: mac, Address: e.record.Address, MTU: control.GuestMTU,
		Hostname: e.record.Name, Domain: e.record.Namespace + "." + control.InternalDomain, Wanted: e.wanted(),
	}
}

// wanted returns the configuration that the edge should have. A record of a version without revisions lacks the egress.
// Until the leader has recorded an egress, wanted has the egress that this process allows.
func (e Edge) wanted() control.Wanted {
	w := control.Wanted{Revision: e.record.NetworkRevision, Ports: hostports.KeysOf(e.record.Forwards), Egress: e.record.Egress}
	if w.Revision == (control.Revision{}) {
		w.Egress = e.allowedEgress()
	}
	return w
}

// allowedEgress returns the egress that this process allows. If the host's resolvers cannot be found, the recorded
// resolvers stay.
func (e Edge) allowedEgress() control.Egress {
	allowed, err := e.host.findEgress()
	if err != nil {
		allowed.Resolvers = e.record.Egress.Resolvers
	}
	return allowed
}

// hasAllowedEgress reports whether the recorded egress equals the egress that this process allows.
func (e Edge) hasAllowedEgress() bool { return e.record.Egress.Equal(e.allowedEgress()) }

// setWanted sets the record's ports and egress, and reports whether they have changed.
func (e Edge) setWanted(forwards []hostports.Forward) (changed bool) {
	egress := e.allowedEgress()
	if e.record.NetworkRevision != (control.Revision{}) && slices.Equal(e.record.Forwards, forwards) && e.record.Egress.Equal(egress) {
		return false
	}
	e.record.Forwards, e.record.Egress, e.record.NetworkRevision = forwards, egress, e.record.NetworkRevision.Next(e.epoch)
	return true
}

// findEgress returns where guests may connect to. Unless the operator names resolvers, guests use the host's resolvers; if
// these cannot be found, findEgress returns the rest and an error. A process that only shuts machines down allows nothing.
func (h *Host) findEgress() (allowed control.Egress, err error) {
	if h.Addresses == nil {
		return control.Egress{Deny: true}, nil
	}
	allowed = h.EgressPolicy
	allowed.Denied = append(slices.Clone(allowed.Denied), h.Addresses.Range) // some machines may have addresses of an earlier range
	if len(allowed.Resolvers) == 0 {
		allowed.Resolvers, _, err = control.ReadResolvers()
	}
	return allowed, err
}

// edgeReport is a supervisor's report of its edge.
type edgeReport struct {
	isKnown bool             // whether the supervisor has answered
	wanted  control.Revision // of the configuration that the supervisor has received
	ports   []control.Port   // the host ports that the edge serves
}

// servesPort reports whether the edge serves a host port, as the supervisor says.
func (r edgeReport) servesPort(f hostports.Forward) bool { return slices.Contains(r.ports, f.Key()) }

// NeedsChange reports whether Converge would change something: NeedsEgress, or a recorded port that the edge does not
// serve. It ignores ports while the supervisor does not answer.
func (e Edge) NeedsChange() bool {
	isMissing := func(f hostports.Forward) bool { return !e.report.servesPort(f) }
	return e.NeedsEgress() || (e.report.isKnown && slices.ContainsFunc(e.record.Forwards, isMissing))
}

// NeedsEgress reports whether the record lacks the allowed egress, or the supervisor lacks the recorded configuration.
func (e Edge) NeedsEgress() bool {
	return e.record.NetworkRevision == (control.Revision{}) || !e.hasAllowedEgress() ||
		(e.report.isKnown && e.report.wanted != e.record.NetworkRevision)
}

// ConvergeEgress sends the egress that this process allows, and the recorded ports, to the supervisor of a machine that
// runs. It records the egress first, since a new supervisor starts with the record. If the record cannot be written, for
// example on a full disk, it still sends an egress that only forbids more than before.
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

// Converge sends the ports of the spec, and the egress that this process allows, to the supervisor of a machine that
// runs. It records them first, since a new supervisor starts with the record. Ports that do not change keep their
// connections. If a port cannot be opened, the others are served, and Converge returns an error.
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

// findForwards returns the host ports of a spec, and the sockets that it has opened for them. If a port conflicts, it
// returns the machine's present ports and an error.
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

// servePorts sends the recorded configuration to the supervisor, with a socket for each port that the edge does not serve
// yet. It opens the sockets that the caller does not pass.
func (e Edge) servePorts(ctx context.Context, sockets hostports.Sockets) error {
	return e.calls().callSupervisor(ctx, "network", func(ctx context.Context, c *control.Client) error {
		wanted := e.wanted()
		served, err := c.SetWanted(ctx, wanted)
		if err != nil {
			return err
		}
		given, opened := hostports.Sockets{}, hostports.Sockets{}
		defer opened.Close()
		var conflict error
		for _, key := range wanted.Ports {
			switch socket := sockets[key]; {
			case slices.Contains(served, key):
				continue
			case socket != nil:
				given[key] = socket
				continue
			}
			socket, _, err := control.Listen(ctx, key)
			if err != nil { // the other ports are still served
				conflict = driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "host port %d/%s is not available any more: %w", key.HostPort, key.Protocol, err))
				continue
			}
			opened[key], given[key] = socket, socket
		}
		return cmp.Or(c.GiveSockets(ctx, wanted.Revision, given), conflict)
	})
}

// HasPortsOf reports whether a server has the host ports of a spec.
func HasPortsOf(r record.Record, spec driver.ServerSpec) bool {
	return slices.EqualFunc(r.Settings.Ports, spec.Ports, hostports.IsSamePort)
}
