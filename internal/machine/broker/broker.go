// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package broker connects the machines of a host to each other. The broker is a process of its own, so that machines
// find each other while no Drover runs. It makes pairs of connected sockets and passes an end to each of two machines:
// no data of a guest passes it, and if it ends, connections stay.
//
// Start with Broker, which knows the machines. process.go is its process, and place.go is how a driver starts it and
// tells it of machines.
package broker

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// Machine is what the broker knows of a machine. Machines of one namespace of one cluster may meet.
type Machine struct {
	UID       string     `json:"uid"`
	Cluster   string     `json:"cluster,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name,omitempty"`
	Address   netip.Addr `json:"address,omitzero"`
}

// isNeighbor reports whether two machines may meet.
func (m Machine) isNeighbor(other Machine) bool {
	return m.Cluster == other.Cluster && m.Namespace == other.Namespace
}

// request asks the broker to add a machine, or to remove it. The two sockets of the machine's link go with a request to
// add one. The answer is an empty object.
type request struct {
	Machine

	// Program is the digest of the program that the broker should be, empty for any.
	Program string `json:"program,omitempty"`
	// Leaves is set to remove the machine: it may not meet others any more.
	Leaves bool `json:"leaves,omitempty"`
}

// Broker knows the machines that have a link to it.
type Broker struct {
	// program is the digest of the program.
	program string

	mu sync.Mutex
	// members are in the order in which they have joined.
	members     []*member
	connections int
	// idle is closed once there are neither members nor connections of drivers.
	idle chan struct{}
}

// member is a machine that has a link.
type member struct {
	Machine

	broker *Broker
	link   *control.PeerLink
	// calls is the connection for the machine's own calls.
	calls *net.UnixConn
	// followers are closed when the machine is no member any more.
	followers []net.Conn
}

var _ control.Switchboard = (*member)(nil)

// newBroker returns a broker without members. The digest is of the program that it runs as.
func newBroker(program string) *Broker { return &Broker{program: program, idle: make(chan struct{})} }

// serve serves a driver's connection, and reports whether the broker may go on: a driver may need another version of the
// program. The connection stays open for as long as the machine of its request is a member.
func (b *Broker) serve(ctx context.Context, conn *net.UnixConn) (goesOn bool) {
	b.countConnections(1)
	defer b.countConnections(-1)
	defer func() { _ = conn.Close() }()
	var r request
	calls, accepts, err := receiveRequest(conn, &r)
	switch {
	case r.Program != "" && r.Program != b.program:
		closeAll(calls, accepts)
		return false
	case err != nil:
		return true
	case r.Leaves:
		b.remove(r.UID)
		_ = sendAnswer(conn)
		return true
	}
	m := &member{Machine: r.Machine, broker: b, link: control.NewPeerLink(accepts), calls: calls}
	b.join(m, conn)
	go m.follow(ctx)
	if sendAnswer(conn) == nil {
		_, _ = conn.Read(make([]byte, 1)) // the driver sends nothing more, so this returns once it disconnects
	}
	return true
}

// countConnections adds a change to the number of drivers that are connected.
func (b *Broker) countConnections(change int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connections += change
	b.checkIdle()
}

// checkIdle ends a broker that has neither members nor connections of drivers.
func (b *Broker) checkIdle() {
	if len(b.members) > 0 || b.connections > 0 {
		return
	}
	select {
	case <-b.idle:
	default:
		close(b.idle)
	}
}

// join makes a machine a member. It replaces the member of its UID, since several drivers may ask for the same machine,
// and a member that had its address before.
func (b *Broker) join(m *member, follower net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m.followers = []net.Conn{follower}
	b.members = slices.DeleteFunc(b.members, func(other *member) bool {
		switch {
		case other.UID == m.UID:
			m.followers = append(m.followers, other.followers...)
			other.followers = nil
		case other.Address != m.Address:
			return false
		}
		other.end()
		return true
	})
	b.members = append(b.members, m)
}

// remove makes the machine of a UID no member.
func (b *Broker) remove(uid string) {
	b.removeWhere(func(m *member) bool { return m.UID == uid })
}

func (b *Broker) removeWhere(isMeant func(*member) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = slices.DeleteFunc(b.members, func(m *member) bool {
		if isMeant(m) {
			m.end()
			return true
		}
		return false
	})
	b.checkIdle()
}

// end closes what a member has. It waits for nothing.
func (m *member) end() {
	_ = m.calls.Close()
	m.link.Close()
	for _, f := range m.followers {
		_ = f.Close()
	}
}

// follow serves a member until its link ends.
func (m *member) follow(ctx context.Context) {
	go func() {
		defer m.link.Close()
		_ = control.ServeSwitchboard(ctx, m.calls, m)
	}()
	m.link.Follow()
	m.broker.removeWhere(func(other *member) bool { return other == m })
}

// findMember returns the member that joined last among those that meet a test.
func (b *Broker) findMember(isMeant func(*member) bool) (*member, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, other := range slices.Backward(b.members) {
		if isMeant(other) {
			return other, nil
		}
	}
	return nil, failure.ErrNoMachine
}

// Lookup implements control.Switchboard. Machines of other namespaces have no names.
func (m *member) Lookup(_ context.Context, name string) (netip.Addr, error) {
	name, namespace, isFull := strings.Cut(name, ".")
	if isFull && namespace != m.Namespace {
		return netip.Addr{}, failure.ErrNoMachine
	}
	other, err := m.broker.findMember(func(other *member) bool { return other.Name == name && m.isNeighbor(other.Machine) })
	if err != nil {
		return netip.Addr{}, err
	}
	return other.Address, nil
}

// acceptWithin is how long a machine may take to accept a connection. The other's edge gives up then, too.
const acceptWithin = 10 * time.Second

// Dial implements control.Switchboard.
func (m *member) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	if !slices.Contains([]string{control.TCP, control.UDP, control.ICMP}, protocol) {
		return nil, failure.ErrUnknown
	}
	other, err := m.broker.findMember(func(other *member) bool {
		return other.Address == to.Addr() && other.UID != m.UID && m.isNeighbor(other.Machine)
	})
	if err != nil {
		return nil, err
	}
	here, there, err := control.ConnectPeers(protocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()
	c := control.PeerConn{Protocol: protocol, From: netip.AddrPortFrom(m.Address, from), To: to}
	ctx, cancel := context.WithTimeout(ctx, acceptWithin)
	defer cancel()
	if err := other.link.Accept(ctx, c, there); err != nil {
		_ = here.Close()
		return nil, err
	}
	return here, nil
}

// receiveRequest receives a request, and the sockets of one that does not leave.
func receiveRequest(conn *net.UnixConn, r *request) (calls, accepts *net.UnixConn, err error) {
	if calls, accepts, err = control.ReceiveLink(conn, r); r.Leaves {
		closeAll(calls, accepts)
		return nil, nil, nil
	}
	return calls, accepts, err
}

func sendAnswer(conn *net.UnixConn) error { return control.SendMessage(conn, json.RawMessage("{}")) }

func closeAll(connections ...*net.UnixConn) {
	for _, c := range connections {
		if c != nil {
			_ = c.Close()
		}
	}
}
