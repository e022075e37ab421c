// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// joined is a machine that gives its links to a test, and takes connections.
type joined struct {
	localStub

	links    chan *PeerLink
	accepted chan PeerConn
	given    map[Port]*os.File
}

func (j *joined) Join(link *PeerLink) {
	j.links <- link
	link.Follow()
}

func (j *joined) Accept(_ context.Context, c PeerConn, socket *os.File) error {
	j.accepted <- c
	_, err := io.WriteString(socket, "hello")
	return err
}

func (*joined) SetWanted(_ context.Context, w Wanted) (served []Port, err error) {
	if w.Revision.IsBefore(Revision{Epoch: 2}) {
		return nil, failure.ErrStale
	}
	return w.Ports[1:], nil
}

func (j *joined) GiveSockets(_ context.Context, revision Revision, sockets map[Port]*os.File) error {
	if revision != (Revision{2, 1}) {
		return failure.ErrStale
	}
	j.given = sockets
	return nil
}

func (*joined) DialGuest(_ context.Context, port uint16) (net.Conn, error) {
	if port != 80 {
		return nil, failure.ErrRefused
	}
	guest, here := net.Pipe()
	go func() { _, _ = io.Copy(here, here) }()
	return guest, nil
}

// exchange is a switchboard that knows one machine, the one that asks.
type exchange struct{ to *PeerLink }

func (exchange) Lookup(_ context.Context, name string) (netip.Addr, error) {
	if name != "b" {
		return netip.Addr{}, failure.ErrNoMachine
	}
	return netip.MustParseAddr("10.0.0.2"), nil
}

func (e exchange) Dial(ctx context.Context, protocol string, sourcePort uint16, destination netip.AddrPort) (*os.File, error) {
	here, there, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()
	return here, e.to.Accept(ctx, PeerConn{protocol, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), sourcePort), destination}, there)
}

// TestPeers checks that a machine finds another by its link, gets a socket that leads there, and learns of the link's end.
func TestPeers(t *testing.T) {
	t.Parallel()
	m := &joined{links: make(chan *PeerLink, 1), accepted: make(chan PeerConn, 1)}
	c := NewLocalClient("token", serveLocal(t, Local{Network: m, Peer: m}))
	calls, answered := framework.SocketPair(t)
	accepts, asked := framework.SocketPair(t)
	assert.NoError(t, c.Join(t.Context(), calls, accepts))
	CloseFiles(calls, accepts)
	to := NewPeerLink(asked)
	go to.Follow()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error)
	go func() { left <- ServeSwitchboard(ctx, answered, exchange{to}) }()
	link := <-m.links
	address, err := link.Lookup(t.Context(), "b")
	assert.True(t, err == nil && address.String() == "10.0.0.2", "b is %s, %v", address, err)
	assert.ErrorIs(t, "another name", assert.ErrorOf(link.Lookup(t.Context(), "c")), failure.ErrNoMachine)
	target := netip.MustParseAddrPort("10.0.0.2:80")
	socket, err := link.Dial(t.Context(), TCP, 4000, target)
	assert.NoError(t, err)
	got, err := io.ReadAll(socket)
	assert.True(t, err == nil && string(got) == "hello", "the socket has %q, %v", got, err)
	assert.NoError(t, socket.Close())
	if got, want := <-m.accepted, (PeerConn{TCP, netip.MustParseAddrPort("10.0.0.1:4000"), target}); got != want {
		t.Errorf("accepted is %+v, want %+v", got, want)
	}
	leave()
	assert.True(t, (<-left) != nil, "the call has ended without an error")
	assert.Eventually(t, "the link has ended both ways", func(t testing.TB) error {
		_, err := link.Lookup(t.Context(), "b")
		assert.ErrorIs(t, "a call of the machine", err, failure.ErrUnreachable)
		assert.ErrorIs(t, "a call to it", to.Accept(t.Context(), PeerConn{}, socket), failure.ErrUnreachable)
		return nil
	})
}

// hanging is a switchboard whose machines never accept a connection.
type hanging struct{ exchange }

func (hanging) Dial(ctx context.Context, _ string, _ uint16, _ netip.AddrPort) (*os.File, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestHangingDials checks that a machine learns of names while its connections wait for another that does not accept
// them, and that one which makes more calls than it may is told so.
func TestHangingDials(t *testing.T) {
	t.Parallel()
	here, there := framework.ConnPair(t)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- ServeSwitchboard(ctx, there, hanging{}) }()
	at := netip.MustParseAddrPort("10.0.0.2:80")
	for i := range maxPeerCalls - 1 {
		assert.NoError(t, SendMessage(here, peerCall{ID: uint64(i), Conn: &PeerConn{TCP, at, at}}))
	}
	var answer peerAnswer
	assert.NoError(t, SendMessage(here, peerCall{ID: 1000, Name: "b"}))
	_, err := ReceiveMessage(here, &answer, 0)
	if assert.NoError(t, err); answer.ID != 1000 || answer.Address != at.Addr() {
		t.Errorf("the answer is %+v", answer)
	}
	for id := range uint64(2) {
		assert.NoError(t, SendMessage(here, peerCall{ID: 2000 + id, Conn: &PeerConn{TCP, at, at}}))
	}
	_, err = ReceiveMessage(here, &answer, 0)
	if assert.NoError(t, err); answer.ID < 2000 || !errors.Is(failure.ByName(answer.Failure), failure.ErrFailed) {
		t.Errorf("the answer to one call too many is %+v", answer)
	}
	leave()
	assert.True(t, (<-left) != nil, "the link has ended without an error")
}

// TestUnreadCalls checks that as many calls as may wait for an answer have room in the queue to one who reads none, so
// that nobody waits to send.
func TestUnreadCalls(t *testing.T) {
	t.Parallel()
	socket, conn := framework.SocketPair(t)
	defer func() { _ = socket.Close() }()
	at := netip.MustParseAddrPort("255.255.255.255:65535")
	assert.NoError(t, conn.SetWriteDeadline(deadlineAfter(CallWithin)))
	for i := range maxPeerCalls {
		assert.NoError(t, SendMessage(conn, peerCall{ID: 1<<32 + uint64(i), Conn: &PeerConn{TCP, at, at}}, socket))
	}
}

// TestMoreSockets checks that a message with more sockets than are allowed is refused, and that all are the caller's to
// close.
func TestMoreSockets(t *testing.T) {
	t.Parallel()
	here, there := framework.SocketPair(t)
	from, err := unixConn(here)
	assert.NoError(t, err)
	assert.NoError(t, SendMessage(there, struct{}{}, here, here))
	sockets, err := ReceiveMessage(from, &struct{}{}, 1)
	assert.ErrorIs(t, "two sockets in place of one", err, errRequest)
	CloseFiles(append(sockets, here)...)
}

// TestNetworkCalls checks that sockets of ports arrive, and that a connection to the guest carries data.
func TestNetworkCalls(t *testing.T) {
	t.Parallel()
	m := &joined{}
	c := NewLocalClient("token", serveLocal(t, Local{Network: m, Peer: m}))
	socket, port, err := Listen(t.Context(), Port{Protocol: TCP, HostIP: "127.0.0.1", Port: 80})
	assert.NoError(t, err)
	defer func() { _ = socket.Close() }()
	keys := []Port{{Protocol: TCP, HostIP: "127.0.0.1", HostPort: port, Port: 80}, {Protocol: UDP, HostPort: 1, Port: 53}}
	denied := slices.Repeat([]netip.Prefix{netip.MustParsePrefix("255.255.255.255/32")}, 1000)
	served, err := c.SetWanted(t.Context(), Wanted{Revision{2, 1}, keys, Egress{Denied: denied}})
	assert.True(t, err == nil && slices.Equal(served, keys[1:]), "served are %+v, %v", served, err)
	assert.ErrorIs(t, "an earlier revision", assert.ErrorOf(c.SetWanted(t.Context(), Wanted{Revision: Revision{1, 9}})), failure.ErrStale)
	assert.NoError(t, c.GiveSockets(t.Context(), Revision{2, 1}, map[Port]*os.File{keys[0]: socket}))
	assert.True(t, len(m.given) == 1 && m.given[keys[0]] != nil, "given are %+v", m.given)
	assert.ErrorIs(t, "sockets of another revision", c.GiveSockets(t.Context(), Revision{2, 2}, nil), failure.ErrStale)
	conn, err := c.DialGuest(t.Context(), 80)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "hello")))
	text := make([]byte, 5)
	_, err = io.ReadFull(conn, text)
	assert.True(t, err == nil && string(text) == "hello", "the guest answers %q, %v", text, err)
	assert.NoError(t, conn.Close())
	assert.ErrorIs(t, "a port that the guest refuses", assert.ErrorOf(c.DialGuest(t.Context(), 81)), failure.ErrRefused)
}
