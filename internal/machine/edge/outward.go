// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// Errors of connections that are too many.
var (
	errNoMemory = errors.New("the machine has too many connections")
	errTooFast  = errors.New("the machine begins too many connections a second")
)

// forwardTCP makes a connection that the guest asks for. The guest gets its answer once the other end has answered.
func (e *Edge) forwardTCP(r *tcp.ForwarderRequest) {
	id := r.ID()
	to := addrPortOf(id.LocalAddress, id.LocalPort)
	share := e.budget.takeShare(keptByConnections)
	defer func() { e.budget.giveBack(share) }()
	outside, err := e.dial(control.TCP, id.RemotePort, to)
	defer e.forgetOutside(outside)
	if err == nil && share == 0 {
		err = errors.Join(errNoMemory, outside.Close())
	}
	if err != nil {
		e.noteRefusal(control.TCP, to.String(), err)
		r.Complete(true)
		return
	}
	var queue waiter.Queue
	endpoint, problem := r.CreateEndpoint(&queue)
	r.Complete(false)
	if problem != nil {
		_ = outside.Close()
		return
	}
	newGuestConn(e, &queue, endpoint, share).join(outside, share)
}

// dial connects the guest to an address, through another edge or by a socket of the host.
func (e *Edge) dial(protocol string, from uint16, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(e.context, dialWithin)
	defer cancel()
	switch {
	case to.Addr() == e.Gateway() && to.Port() == control.DNSPort && protocol == control.TCP:
		return names{e}.serveTCP(), nil
	case e.Address.Masked().Contains(to.Addr()) && e.Peers != nil && to.Addr() != e.Gateway():
		return dialPeer(ctx, e.Peers, protocol, from, to)
	}
	if err := e.checkOutside(to.Addr()); err != nil {
		return nil, err
	}
	return e.dialOutside(ctx, protocol, to)
}

// dialOutside connects the guest to an address through the host.
func (e *Edge) dialOutside(ctx context.Context, protocol string, to netip.AddrPort) (net.Conn, error) {
	if protocol == control.TCP {
		if err := e.pace.Wait(ctx); err != nil {
			return nil, errors.Join(errTooFast, err)
		}
	}
	conn, err := e.Dial(ctx, protocol+"4", to.String())
	if err != nil {
		return nil, err
	}
	if protocol == control.UDP {
		conn = &outsideFlow{Conn: conn, edge: e, to: to.Addr(), checkedAt: e.Clock.Now()}
	}
	e.noteOutside(conn, to.Addr())
	// Routes may have changed meanwhile, and what is allowed.
	if err := e.checkOutside(to.Addr()); err != nil {
		e.forgetOutside(conn)
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// flowCheckEvery is how often the route of a flow is checked.
const flowCheckEvery = time.Second

// outsideFlow is a flow of UDP through the host, which ends once it leads to where the guest may not send. The kernel
// looks the route of each packet up, and an address can become one of the host's own. A connection of TCP is reset then.
type outsideFlow struct {
	net.Conn

	edge      *Edge
	to        netip.Addr
	checkedAt time.Time
}

// Write implements net.Conn. It is called by one goroutine.
func (f *outsideFlow) Write(packet []byte) (int, error) {
	if now := f.edge.Clock.Now(); now.Sub(f.checkedAt) >= flowCheckEvery {
		if err := f.edge.checkOutside(f.to); err != nil {
			return 0, err
		}
		f.checkedAt = now
	}
	return f.Conn.Write(packet)
}

// DialHost connects by a socket of this host: by ping sockets for icmp4, and as net.Dialer does for other networks.
func DialHost(ctx context.Context, network, address string) (net.Conn, error) {
	if network != control.ICMP+"4" {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return dialPing(to.Addr())
}

// dialPeer connects the guest to another machine.
func dialPeer(ctx context.Context, peers control.Switchboard, protocol string, from uint16, to netip.AddrPort) (net.Conn, error) {
	socket, err := peers.Dial(ctx, protocol, from, to)
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(socket)
	return conn, errors.Join(err, socket.Close())
}

// Accept takes a connection of another machine to a port of the guest, which sees that machine's address and port.
func (e *Edge) Accept(ctx context.Context, c control.PeerConn, socket *os.File) error {
	if !e.Address.Masked().Contains(c.From.Addr()) || c.From.Addr() == e.Address.Addr() || c.From.Addr() == e.Gateway() {
		return failure.ErrNoMachine
	}
	conn, err := net.FileConn(socket)
	if err != nil {
		return err
	}
	switch c.Protocol {
	case control.TCP:
	case control.UDP:
		return e.acceptFlow(c, conn)
	case control.ICMP:
		return e.pings.accept(c, conn)
	default:
		return errors.Join(failure.ErrProtocol, conn.Close())
	}
	guest, share, err := e.dialGuest(ctx, c.From, c.To.Port(), keptByConnections)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	go func() {
		defer e.budget.giveBack(share)
		guest.join(conn, share)
	}()
	return nil
}

func (e *Edge) acceptFlow(c control.PeerConn, conn net.Conn) error {
	if !e.budget.takeFlow() {
		return errors.Join(errNoMemory, conn.Close())
	}
	guest, err := e.dialGuestUDP(c.From, c.To.Port())
	if err != nil {
		e.budget.giveBackFlow()
		return errors.Join(err, conn.Close())
	}
	go func() {
		defer e.budget.giveBackFlow()
		e.joinFlow(guest, conn)
	}()
	return nil
}

// forwardUDP begins a flow that the guest has sent the first packet of. It must not wait.
func (e *Edge) forwardUDP(r *udp.ForwarderRequest) {
	id := r.ID()
	to := addrPortOf(id.LocalAddress, id.LocalPort)
	if !e.budget.takeFlow() {
		e.noteRefusal(control.UDP, to.String(), errNoMemory)
		return
	}
	var queue waiter.Queue
	endpoint, problem := r.CreateEndpoint(&queue)
	if problem != nil {
		e.budget.giveBackFlow()
		return
	}
	guest := e.flows.add(flowKey{id.RemotePort, to}, &queue, endpoint)
	go func() {
		defer e.budget.giveBackFlow()
		outside, err := e.dial(control.UDP, id.RemotePort, to)
		defer e.forgetOutside(outside)
		if err != nil {
			e.noteRefusal(control.UDP, to.String(), err)
			ports := make(header.UDP, header.UDPMinimumSize)
			ports.Encode(&header.UDPFields{SrcPort: id.RemotePort, DstPort: to.Port(), Length: header.UDPMinimumSize})
			e.link.sendUnreachable(header.UDPProtocolNumber, to.Addr(), ports)
			_ = guest.Close()
			return
		}
		e.joinFlow(guest, outside)
	}()
}
