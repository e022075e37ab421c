// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// digest is what the broker of a test runs as.
const digest = "this program"

// guest is a machine that has joined a broker.
type guest struct {
	Machine

	calls *control.PeerLink
	// follower is the connection of the driver that has told of the machine.
	follower *net.UnixConn
	accepted chan control.PeerConn
}

// hangingPort is a port that a guest does not answer at.
const hangingPort = 82

// Accept is what control.Peer has: the guest greets who connects to port 80, and refuses others.
func (g *guest) Accept(ctx context.Context, c control.PeerConn, socket *os.File) error {
	if c.To.Port() == hangingPort {
		<-ctx.Done()
		return ctx.Err()
	}
	g.accepted <- c
	if c.To.Port() != 80 {
		return failure.ErrRefused
	}
	return assert.ErrorOf(io.WriteString(socket, "I am "+g.Name))
}

// send sends a request to the broker, and returns the driver's end of the connection, what the broker says of going on
// once the connection has ended, and whether it has answered.
func send(t *testing.T, b *Broker, r request, sockets ...*os.File) (conn *net.UnixConn, goesOn <-chan bool, err error) {
	t.Helper()
	conn, there := framework.ConnPair(t)
	ended := make(chan bool, 1)
	go func() { ended <- b.serve(t.Context(), there) }()
	assert.NoError(t, control.SendMessage(conn, r, sockets...))
	_, err = control.ReceiveMessage(conn, &struct{}{}, 0)
	return conn, ended, err
}

// join makes a machine a member of the broker.
func join(t *testing.T, b *Broker, m Machine) *guest {
	t.Helper()
	callsThere, calls := framework.SocketPair(t)
	acceptsThere, accepts := framework.SocketPair(t)
	defer control.CloseFiles(callsThere, acceptsThere)
	g := &guest{Machine: m, calls: control.NewPeerLink(calls), accepted: make(chan control.PeerConn, 1)}
	go g.calls.Follow()
	go func() { _ = control.ServePeer(t.Context(), accepts, g.Accept) }()
	var err error
	g.follower, _, err = send(t, b, request{Machine: m, Program: digest}, callsThere, acceptsThere)
	assert.NoError(t, err)
	return g
}

func machineOf(uid, namespace, name, address string) Machine {
	return Machine{UID: uid, Cluster: "cluster-1", Namespace: namespace, Name: name, Address: netip.MustParseAddr(address)}
}

// reach returns the greeting of the machine at an address, whom another connects to from its port 4000.
func (g *guest) reach(t testing.TB, address string) (string, error) {
	t.Helper()
	socket, err := g.calls.Dial(t.Context(), control.TCP, 4000, netip.MustParseAddrPort(address))
	if err != nil {
		return "", err
	}
	greeting, err := io.ReadAll(socket)
	return string(greeting), errors.Join(err, socket.Close())
}

// isRemoved checks that the machine's link has ended.
func (g *guest) isRemoved(t *testing.T, what string) {
	t.Helper()
	assert.Eventually(t, what+" ends its link", func(t testing.TB) error {
		_, err := g.calls.Lookup(t.Context(), g.Name)
		assert.ErrorIs(t, "a call", err, failure.ErrUnreachable)
		return nil
	})
}

// TestBroker checks whom a machine finds and reaches: those of its namespace and cluster, as long as its address is its
// own, and that the other learns who it is.
func TestBroker(t *testing.T) {
	t.Parallel()
	b := newBroker(digest)
	a := join(t, b, machineOf("1", "ns", "a", "10.1.0.2"))
	db := join(t, b, machineOf("2", "ns", "db", "10.1.0.3"))
	join(t, b, machineOf("3", "other", "c", "10.1.0.4"))
	stranger := machineOf("4", "ns", "d", "10.1.0.5")
	stranger.Cluster = "cluster-2"
	join(t, b, stranger)

	for name, want := range map[string]string{"a": "10.1.0.2", "db": "10.1.0.3", "db.ns": "10.1.0.3", "c": "", "c.other": "", "d": "", "d.ns": "", "db.ns.x": "", "x": ""} {
		address, err := a.calls.Lookup(t.Context(), name)
		if want == "" {
			assert.ErrorIs(t, name, err, failure.ErrNoMachine)
		} else if err != nil || address.String() != want {
			t.Errorf("%s is %s, %v, want %s", name, address, err, want)
		}
	}
	greeting, err := a.reach(t, "10.1.0.3:80")
	assert.True(t, err == nil && greeting == "I am db", "the machine says %q, %v", greeting, err)
	want := control.PeerConn{Protocol: control.TCP, From: netip.MustParseAddrPort("10.1.0.2:4000"), To: netip.MustParseAddrPort("10.1.0.3:80")}
	assert.Equal(t, "the machine accepts", <-db.accepted, want)
	for address, want := range map[string]error{
		"10.1.0.3:81": failure.ErrRefused, "10.1.0.2:80": failure.ErrNoMachine,
		"10.1.0.4:80": failure.ErrNoMachine, "10.1.0.5:80": failure.ErrNoMachine, "10.1.0.9:80": failure.ErrNoMachine,
	} {
		assert.ErrorIs(t, address, assert.ErrorOf(a.reach(t, address)), want)
	}
	_, err = a.calls.Dial(t.Context(), "sctp", 4000, netip.MustParseAddrPort("10.1.0.3:80"))
	assert.ErrorIs(t, "another protocol", err, failure.ErrUnknown)
}

// TestMembers checks that a machine that is told of again is one member, that one which leaves or whose supervisor has
// ended is none, and that the last machine with an address has it.
func TestMembers(t *testing.T) {
	t.Parallel()
	b := newBroker(digest)
	a, db := machineOf("1", "ns", "a", "10.1.0.2"), machineOf("2", "ns", "db", "10.1.0.3")
	before := join(t, b, a)
	again := join(t, b, a)
	before.isRemoved(t, "another link of the machine")
	join(t, b, db)
	_, err := again.reach(t, "10.1.0.3:80")
	assert.NoError(t, err)

	released := join(t, b, machineOf("3", "ns", "e", "10.1.0.4"))
	_, goesOn, err := send(t, b, request{Machine: Machine{UID: "3"}, Leaves: true})
	assert.NoError(t, err)
	assert.True(t, <-goesOn, "the broker ends with a machine that leaves")
	released.isRemoved(t, "a machine that leaves")
	assert.ErrorIs(t, "a machine that has left", assert.ErrorOf(again.reach(t, "10.1.0.4:80")), failure.ErrNoMachine)

	old := join(t, b, machineOf("4", "ns", "f", "10.1.0.5"))
	join(t, b, machineOf("5", "ns", "g", "10.1.0.5"))
	old.isRemoved(t, "another machine with its address")
	greeting, err := again.reach(t, "10.1.0.5:80")
	assert.True(t, err == nil && greeting == "I am g", "at the address is %q, %v", greeting, err)

	socket, hangs := make(chan error, 1), netip.MustParseAddrPort("10.1.0.3:82")
	go func() { socket <- assert.ErrorOf(again.calls.Dial(t.Context(), control.TCP, 4000, hangs)) }()
	again.calls.Close()
	for what, conn := range map[string]*net.UnixConn{"first": before.follower, "last": again.follower} {
		assert.ErrorIs(t, "the "+what+" driver's connection for a machine whose supervisor has ended, want EOF", assert.ErrorOf(conn.Read(make([]byte, 1))), io.EOF)
	}
}

// TestIdle checks that a broker ends once it has neither members nor connections, and that one of another version than
// the driver needs ends too, without an answer.
func TestIdle(t *testing.T) {
	t.Parallel()
	b := newBroker(digest)
	a := join(t, b, machineOf("1", "ns", "a", "10.1.0.2"))
	assert.NoError(t, a.follower.Close()) // the driver has ended
	_, goesOn, err := send(t, b, request{Machine: Machine{UID: "9"}, Leaves: true})
	if assert.NoError(t, err); !<-goesOn {
		t.Error("the broker ends")
	}
	select {
	case <-b.idle:
		t.Fatal("a broker with a member is idle")
	default:
	}
	_, goesOn, err = send(t, b, request{Program: "another"})
	if err == nil || <-goesOn {
		t.Errorf("a driver of another version: it was answered with %v, and the broker goes on", err)
	}
	a.calls.Close()
	<-b.idle
}
