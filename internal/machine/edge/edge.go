// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package edge is a machine's end of the network. QEMU hands it each Ethernet frame of the guest, and it ends what they
// carry: it leases the guest its address (dhcp.go), answers for names (dns.go), and carries on TCP, UDP and pings by
// sockets of its own (outward.go, inward.go, ping.go), as far as a policy allows (policy.go). So no frame of a guest ever
// reaches the host's network, and one guest cannot stall or reach another but through both their edges.
//
// Start with Edge. link.go has what is done with frames before gVisor's network stack gets them.
package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/control"
)

const (
	// queueLength is how many packets may wait for the guest. TCP sends again what is dropped.
	queueLength = 512
	// dialWithin is how long a connection may take to be made, by the guest or to it.
	dialWithin = 10 * time.Second
	// dialsASecond is how many connections through the host the guest may begin in the long run, and dialsAtOnce in a short
	// time. Each occupies one of the host's 28,000 ports to a server for a minute after its end.
	dialsASecond, dialsAtOnce = 200, 2000
	// maxDials is how many connections of the guest may be in the making.
	maxDials = 128
	// firstWindow is how much the guest may send, in bytes, before its connection has a share of the budget. A window
	// must not shrink.
	firstWindow = 4 << 10
	// timeWait is how long a connection that has ended keeps its ports. No packet of one that has comes later: between the
	// guest and the edge, none overtakes another.
	timeWait = 100 * time.Millisecond
	// maxResend is the longest pause before data is sent to the guest again. Nothing is lost between them but while the
	// guest is paused or its queues are full, so a connection goes on this soon after that. It is given up after
	// maxResends of them, as late as by Linux (tcp_retries2 of tcp(7)).
	maxResend  = 2 * time.Second
	maxResends = 450
	// flowTimeout is how long a flow of UDP lasts after its last packet.
	flowTimeout = time.Minute
	// nic is the only interface of the stack.
	nic = 1
)

var _ control.Network = (*Edge)(nil)

// Edge is the end of one machine's network.
type Edge struct {
	control.NetworkConfig

	Options

	stack  *stack.Stack
	link   link
	budget budget
	pings  pings
	counts counts
	flows  guestFlows
	// pace limits the connections through the host.
	pace *rate.Limiter

	mu sync.Mutex
	// wanted is the configuration that the edge should have, and ports are those that it serves.
	wanted control.Wanted
	ports  map[control.Port]io.Closer
	// outside are the connections through the host, by the address that they lead to.
	outside map[net.Conn]netip.Addr

	// context ends with the edge.
	context context.Context //nolint:containedctx // the stack's callbacks have none
	stop    context.CancelFunc
}

// Options are what an edge works with.
type Options struct {
	Routes RouteTable
	// Peers leads to other machines; nil where there are none.
	Peers control.Switchboard
	Clock clock.WithTicker
	// Dial connects to the outside, to an address that was checked. DialHost does it in this host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns an edge, which does nothing until it serves a link, and ends with ctx.
func New(ctx context.Context, c control.NetworkConfig, o Options) (*Edge, error) {
	e := &Edge{NetworkConfig: c, Options: o, ports: map[control.Port]io.Closer{}, wanted: c.Wanted, outside: map[net.Conn]netip.Addr{}, budget: newBudget(), pings: newPings(), pace: rate.NewLimiter(dialsASecond, dialsAtOnce)}
	e.context, e.stop = context.WithCancel(ctx)
	e.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	e.pings.edge = e
	e.link = link{channel.New(queueLength, uint32(c.MTU), ""), c, &e.counts} //nolint:gosec // small
	// Nothing but QEMU is between the guest and the edge: what the guest sends arrives as it is.
	e.link.LinkEPCapabilities |= stack.CapabilityRXChecksumOffload
	if err := e.configureStack(); err != nil {
		return nil, err
	}
	return e, nil
}

// configureStack has the stack take every packet of the guest, to whomever it is, and answer as anybody.
func (e *Edge) configureStack() error {
	if err := e.stack.CreateNIC(nic, e.link.Endpoint); err != nil {
		return fmt.Errorf("making the network's interface: %s", err)
	}
	gateway := tcpip.AddressWithPrefix{Address: addressOf(e.Gateway()), PrefixLen: e.Address.Bits()}
	if err := e.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: gateway}, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("adding the gateway's address: %s", err)
	}
	e.stack.SetPromiscuousMode(nic, true)
	e.stack.SetSpoofing(nic, true)
	e.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	sack, wait := tcpip.TCPSACKEnabled(true), tcpip.TCPTimeWaitTimeoutOption(timeWait)
	resend, resends := tcpip.TCPMaxRTOOption(maxResend), tcpip.TCPMaxRetriesOption(maxResends)
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &wait, &resend, &resends} {
		if err := e.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("configuring TCP: %s", err)
		}
	}
	e.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(e.stack, firstWindow, maxDials, e.forwardTCP).HandlePacket)
	e.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(e.stack, e.forwardUDP).HandlePacket)
	return nil
}

// Serve carries frames from and to QEMU, until the connection or ctx ends. It is called once.
func (e *Edge) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		defer cancel()
		sent <- e.link.sendFrames(ctx, conn)
	}()
	err := e.receiveFrames(conn) //nolint:contextcheck // what a frame begins lasts as long as the edge
	cancel()
	err = errors.Join(err, <-sent)
	e.stop()
	e.mu.Lock()
	e.setPorts(nil)
	e.mu.Unlock()
	e.stack.Close()
	return err
}

// DialGuest implements control.Network. The guest sees the gateway as the other end.
func (e *Edge) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	conn, share, err := e.dialGuest(ctx, netip.AddrPortFrom(e.Gateway(), 0), port, 0)
	if err != nil {
		return nil, err
	}
	return &countedConn{guestConn: conn, giveBack: sync.OnceFunc(func() {
		go func() {
			if !e.waitUntil(conn.isSent, sentWithin) {
				conn.Reset()
			}
			e.budget.giveBack(share)
		}()
	})}, nil
}

// countedConn gives its share of the budget back when it is closed and the guest has all that was sent.
type countedConn struct {
	*guestConn
	giveBack func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.giveBack()
	return c.guestConn.Close()
}

func addressOf(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

func addrPortOf(a tcpip.Address, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(a.As4()), port)
}

func fullAddress(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: addressOf(a.Addr()), Port: a.Port()}
}
