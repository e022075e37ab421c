// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// setPorts stops serving ports that are not wanted. The caller has the lock.
func (e *Edge) setPorts(wanted []control.Port) {
	for key, port := range e.ports {
		if !slices.Contains(wanted, key) {
			_ = port.Close()
			delete(e.ports, key)
		}
	}
}

// GiveSockets implements control.Network.
func (e *Edge) GiveSockets(_ context.Context, of control.Revision, sockets map[control.Port]*os.File) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if of != e.wanted.Revision {
		return failure.ErrStale
	}
	for key, socket := range sockets {
		if e.ports[key] != nil || !slices.Contains(e.wanted.Ports, key) {
			continue
		}
		port, openErr := e.openPort(key, socket)
		if openErr != nil {
			err = errors.Join(err, fmt.Errorf("port %d/%s: %w", key.HostPort, key.Protocol, openErr))
			continue
		}
		e.ports[key] = port
	}
	return err
}

// Served implements supervisor.Network.
func (e *Edge) Served() (of control.Revision, ports []control.Port) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted.Revision, e.servedPorts()
}

// servedPorts returns the ports that are served, in their order. The caller has the lock.
func (e *Edge) servedPorts() []control.Port {
	return slices.DeleteFunc(slices.Clone(e.wanted.Ports), func(p control.Port) bool { return e.ports[p] == nil })
}

// openPort serves a port by a socket that listens.
func (e *Edge) openPort(key control.Port, socket *os.File) (io.Closer, error) {
	if key.Protocol == control.UDP {
		conn, err := net.FilePacketConn(socket)
		if err != nil {
			return nil, err
		}
		packets, ok := conn.(*net.UDPConn)
		if !ok {
			return nil, errors.Join(errors.New("its socket is not of UDP"), conn.Close())
		}
		go inwardPort{e, key.Port}.servePackets(packets)
		return packets, nil
	}
	listener, err := net.FileListener(socket)
	if err != nil {
		return nil, err
	}
	go inwardPort{e, key.Port}.serveConnections(e.context, listener)
	return listener, nil
}

// acceptPause is a pause after a connection could not be accepted, as when there are too many open files.
const acceptPause = 50 * time.Millisecond

// inwardPort is a port of the guest that a port of this host leads to.
type inwardPort struct {
	edge *Edge
	port uint16
}

func (p inwardPort) serveConnections(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-p.edge.Clock.After(acceptPause)
			continue
		}
		go p.admit(ctx, conn)
	}
}

// admitWithin is how long a guest that is busy or paused may take to admit a client, whom the host has admitted already.
const admitWithin = 30 * time.Second

// admit carries on a client's connection to a port of the guest. One that the guest refuses is reset.
func (p inwardPort) admit(ctx context.Context, conn net.Conn) {
	dialling, cancel := context.WithTimeout(ctx, admitWithin)
	defer cancel()
	guest, share, err := p.edge.dialGuest(dialling, netip.AddrPortFrom(p.edge.Gateway(), 0), p.port, keptByConnections)
	if err != nil {
		control.Reset(conn)
		return
	}
	defer p.edge.budget.giveBack(share)
	guest.join(conn, share)
}

// dialGuest connects to a port of the guest, unless less than kept bytes of the budget would be left. The caller gives
// the share back.
func (e *Edge) dialGuest(ctx context.Context, from netip.AddrPort, port uint16, kept int) (conn *guestConn, share int, err error) {
	if share = e.budget.takeShare(kept); share == 0 {
		return nil, 0, errNoMemory
	}
	defer func() {
		if err != nil {
			e.budget.giveBack(share)
		}
	}()
	var queue waiter.Queue
	endpoint, problem := e.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if problem != nil {
		return nil, share, errors.New(problem.String())
	}
	conn = newGuestConn(e, &queue, endpoint, share)
	endpoint.SocketOptions().SetReuseAddress(from.Port() != 0) // another machine connects to several ports from one of its own
	if err := connect(ctx, &queue, endpoint, fullAddress(from), fullAddress(netip.AddrPortFrom(e.Address.Addr(), port))); err != nil {
		endpoint.Close()
		return nil, share, fmt.Errorf("port %d of the guest: %w", port, err)
	}
	return conn, share, nil
}

// connect connects an endpoint.
func connect(ctx context.Context, queue *waiter.Queue, endpoint tcpip.Endpoint, from, to tcpip.FullAddress) error {
	if problem := endpoint.Bind(from); problem != nil {
		return errors.New(problem.String())
	}
	entry, isWritable := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	problem := endpoint.Connect(to)
	if _, hasStarted := problem.(*tcpip.ErrConnectStarted); hasStarted {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-isWritable:
		}
		problem = endpoint.LastError()
	}
	switch problem.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionRefused:
		return failure.ErrRefused
	}
	return errors.New(problem.String())
}

// servePackets carries packets of UDP to a port of the guest, and the answers back. Each client has a flow of its own.
func (p inwardPort) servePackets(conn *net.UDPConn) {
	flows := &inwardFlows{edge: p.edge, conn: conn, port: p.port, byClient: map[inwardClient]net.Conn{}}
	packet, info := make([]byte, maxPacket), make([]byte, maxPacketInfo)
	for {
		n, infoBytes, _, from, err := conn.ReadMsgUDPAddrPort(packet, info)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-p.edge.Clock.After(acceptPause)
			continue
		}
		if guest := flows.of(inwardClient{from, string(control.AnswerInfo(info[:infoBytes]))}); guest != nil {
			_ = guest.SetReadDeadline(p.edge.Clock.Now().Add(flowTimeout))
			_, _ = guest.Write(packet[:n])
		}
	}
}

// maxPacketInfo is more than the kernel says of a packet.
const maxPacketInfo = 128

// inwardClient is a client, and the address of this host that it has sent to, as the kernel takes it with an answer.
type inwardClient struct {
	address netip.AddrPort
	info    string
}

// inwardFlows are the flows of a port.
type inwardFlows struct {
	edge *Edge
	conn *net.UDPConn
	port uint16

	mu       sync.Mutex
	byClient map[inwardClient]net.Conn
}

// of returns the flow of a client, nil if there are too many.
func (f *inwardFlows) of(client inwardClient) net.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	if guest := f.byClient[client]; guest != nil {
		return guest
	}
	if !f.edge.budget.takeFlow() {
		return nil
	}
	guest, err := f.edge.dialGuestUDP(netip.AddrPortFrom(f.edge.Gateway(), 0), f.port)
	if err != nil {
		f.edge.budget.giveBackFlow()
		return nil
	}
	f.byClient[client] = guest
	go f.answer(client, guest)
	return guest
}

// answer carries the guest's packets to a client, until none has come for a while.
func (f *inwardFlows) answer(client inwardClient, guest net.Conn) {
	f.edge.counts.flows.Add(1)
	defer func() {
		f.mu.Lock()
		delete(f.byClient, client)
		f.mu.Unlock()
		_ = guest.Close()
		f.edge.counts.flows.Add(-1)
		f.edge.budget.giveBackFlow()
	}()
	packet := make([]byte, flowPacket+1)
	for {
		n, err := guest.Read(packet)
		if err != nil {
			return
		}
		if n > flowPacket {
			continue
		}
		_ = guest.SetReadDeadline(f.edge.Clock.Now().Add(flowTimeout))
		if _, _, err := f.conn.WriteMsgUDPAddrPort(packet[:n], []byte(client.info), client.address); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// dialGuestUDP returns a flow to a port of the guest, which sees it come from an address.
func (e *Edge) dialGuestUDP(from netip.AddrPort, port uint16) (net.Conn, error) {
	var queue waiter.Queue
	endpoint, problem := e.stack.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if problem == nil {
		endpoint.SocketOptions().SetReusePort(from.Port() != 0) // as dialGuest does
		problem = endpoint.Bind(fullAddress(from))
	}
	if problem == nil {
		problem = endpoint.Connect(fullAddress(netip.AddrPortFrom(e.Address.Addr(), port)))
	}
	if problem != nil {
		return nil, errors.New(problem.String())
	}
	if local, problem := endpoint.GetLocalAddress(); problem == nil { // with the port that the stack has chosen
		from = netip.AddrPortFrom(from.Addr(), local.Port)
	}
	guest := e.flows.add(flowKey{port, from}, &queue, endpoint)
	_ = guest.SetReadDeadline(e.Clock.Now().Add(flowTimeout))
	return guest, nil
}
