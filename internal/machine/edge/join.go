// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/control"
)

const (
	// keepAliveIdle is after how long a connection that is silent is checked, and keepAliveInterval is between checks. A
	// guest that was reset answers the first one; one that is paused has as many as it has of maxResends.
	keepAliveIdle     = time.Minute
	keepAliveInterval = 15 * time.Second
	keepAlives        = int(maxResends * maxResend / keepAliveInterval)
	// segmentBytes is more than an empty segment needs. The stack counts the data of segments alone, and each write makes
	// one, which stays until the guest has acknowledged it.
	segmentBytes = 768
	// sentWithin is how long a connection that has ended waits for the ends to take all: as long as data is sent again.
	sentWithin = maxResends * maxResend
	forever    = 0
	// shortestPause and longestPause are between two looks at a connection.
	shortestPause, longestPause = 100 * time.Microsecond, 50 * time.Millisecond
	// maxPacket is more than a packet of UDP has.
	maxPacket = 64 << 10
	// maxWaiting is how many packets of a flow may wait to be carried on.
	maxWaiting = 16
	// flowPacket is the most that a packet of UDP has which is carried on. Longer ones are dropped.
	flowPacket = 9 << 10
)

// guestConn is a connection of the guest.
type guestConn struct {
	*gonet.TCPConn

	edge     *Edge
	endpoint tcpip.Endpoint
	// buffer is how much may be on its way to the guest, and overhead what its short segments need beside.
	buffer, overhead int
}

// newGuestConn returns a connection of the guest, which has a share of the budget.
func newGuestConn(e *Edge, queue *waiter.Queue, endpoint tcpip.Endpoint, share int) *guestConn {
	configureEndpoint(endpoint, share)
	buffer, _ := buffersOf(share)
	return &guestConn{TCPConn: gonet.NewTCPConn(queue, endpoint), edge: e, endpoint: endpoint, buffer: buffer}
}

// Write implements net.Conn. It is called by one goroutine. After too many short segments it waits until the guest has
// taken all: meanwhile, what comes next gathers for longer ones.
func (c *guestConn) Write(p []byte) (int, error) {
	if c.overhead += max(segmentBytes-len(p), 0); c.overhead > c.buffer {
		c.edge.waitUntil(c.hasTakenAll, forever)
		c.overhead = segmentBytes
	}
	return c.TCPConn.Write(p)
}

// hasTakenAll reports whether the guest has acknowledged all that was written, or never will. The stack only tells
// whether it would take more into a buffer of some size: one byte here, which it takes if it has none.
func (c *guestConn) hasTakenAll() bool {
	options := c.endpoint.SocketOptions()
	options.SetSendBufferSize(1, false)
	defer options.SetSendBufferSize(int64(c.buffer), false)
	return c.endpoint.Readiness(waiter.WritableEvents) != 0
}

// Reset ends the connection so that the guest learns that it was cut off. What is on its way is dropped.
func (c *guestConn) Reset() { c.endpoint.Abort() }

// isSent reports whether the guest has acknowledged all of a connection that takes no more, or never will.
func (c *guestConn) isSent() bool {
	done := []tcp.EndpointState{tcp.StateFinWait2, tcp.StateTimeWait, tcp.StateClose, tcp.StateError}
	return slices.Contains(done, tcp.EndpointState(c.endpoint.State())) //nolint:gosec // the stack's own
}

// isSent reports whether the other end of a connection has acknowledged all, if it is of TCP and has ended in both
// directions. Another machine's socket has what was sent.
func isSent(conn net.Conn) bool {
	socket, ok := conn.(*net.TCPConn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	isSent := true
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		isSent = err != nil || slices.Contains([]uint8{unix.BPF_TCP_FIN_WAIT2, unix.BPF_TCP_TIME_WAIT, unix.BPF_TCP_CLOSE}, info.State)
	})
	return isSent
}

// waitUntil waits until something is done, and reports whether it is, within a time, or forever.
func (e *Edge) waitUntil(isDone func() bool, within time.Duration) bool {
	begun := e.Clock.Now()
	for pause := shortestPause; !isDone(); pause = min(2*pause, longestPause) {
		if within != forever && e.Clock.Since(begun) > within {
			return false
		}
		select {
		case <-e.Clock.After(pause):
		case <-e.context.Done():
			return false
		}
	}
	return true
}

func configureEndpoint(endpoint tcpip.Endpoint, share int) {
	buffer, _ := buffersOf(share)
	options := endpoint.SocketOptions()
	options.SetSendBufferSize(int64(buffer), true)
	options.SetReceiveBufferSize(int64(buffer), true)
	options.SetKeepAlive(true)
	options.SetDelayOption(false)
	idle, interval := tcpip.KeepaliveIdleOption(keepAliveIdle), tcpip.KeepaliveIntervalOption(keepAliveInterval)
	_, _, _ = endpoint.SetSockOpt(&idle), endpoint.SetSockOpt(&interval), endpoint.SetSockOptInt(tcpip.KeepaliveCountOption, keepAlives)
}

// flowKey names a flow of UDP: by the guest's port, and the other end.
type flowKey struct {
	guest uint16
	other netip.AddrPort
}

// guestFlows has each *guestFlow by its flowKey.
type guestFlows struct{ sync.Map }

// guestFlow is a flow of UDP of the guest.
type guestFlow struct {
	*gonet.UDPConn

	all      *guestFlows
	key      flowKey
	endpoint tcpip.Endpoint
	// waiting counts the packets of the guest since none waited in the stack, but for those that were read.
	waiting atomic.Int64
}

func (all *guestFlows) add(key flowKey, queue *waiter.Queue, endpoint tcpip.Endpoint) *guestFlow {
	options := endpoint.SocketOptions()
	options.SetSendBufferSize(flowShare/4, true)
	options.SetReceiveBufferSize(flowShare/4, true)
	f := &guestFlow{UDPConn: gonet.NewUDPConn(queue, endpoint), all: all, key: key, endpoint: endpoint}
	all.Store(key, f)
	return f
}

// Read implements net.Conn.
func (f *guestFlow) Read(p []byte) (int, error) {
	n, err := f.UDPConn.Read(p)
	if f.waiting.Add(-1); f.endpoint.Readiness(waiter.ReadableEvents) == 0 {
		f.waiting.Store(0)
	}
	return n, err
}

// Close implements net.Conn.
func (f *guestFlow) Close() error {
	f.all.CompareAndDelete(f.key, f)
	return f.UDPConn.Close()
}

// mayWait reports whether a packet of the guest may wait in the stack, and counts it if it is of UDP. The stack itself
// bounds only the bytes of data that wait, and a packet may have no data.
func (all *guestFlows) mayWait(ip header.IPv4) bool {
	udp := header.UDP(ip.Payload())
	if ip.TransportProtocol() != header.UDPProtocolNumber || ip.FragmentOffset() != 0 || len(udp) < header.UDPMinimumSize {
		return true
	}
	flow, ok := all.Load(flowKey{udp.SourcePort(), addrPortOf(ip.DestinationAddress(), udp.DestinationPort())})
	return !ok || flow.(*guestFlow).waiting.Add(1) <= maxWaiting //nolint:forcetypeassert // as add stores it
}

// boundBuffers bounds the kernel's buffers of a socket, which grow to megabytes and which all TCP of the host shares
// (tcp_mem of tcp(7)). The first few connections keep those: they are what makes distant hosts fast.
func boundBuffers(conn net.Conn, share int) {
	socket, ok := conn.(interface {
		SetReadBuffer(bytes int) error
		SetWriteBuffer(bytes int) error
	})
	if !ok || share > unboundShare {
		return
	}
	_, _ = socket.SetReadBuffer(share/2), socket.SetWriteBuffer(share/2) // the kernel doubles both
}

// join carries data between the guest and another end until both have ended, and have got all that is on its way: until then
// it needs memory.
func (c *guestConn) join(other net.Conn, share int) {
	boundBuffers(other, share)
	c.edge.counts.connections.Add(1)
	defer c.edge.counts.connections.Add(-1)
	_, size := buffersOf(share)
	control.Carry(c, other, size)
	if !c.edge.waitUntil(func() bool { return c.isSent() && isSent(other) }, sentWithin) {
		control.Reset(c)
		control.Reset(other)
	}
	_, _ = c.Close(), other.Close()
}

// joinFlow carries packets until none has come for a while in either direction.
func (e *Edge) joinFlow(guest, other net.Conn) {
	e.counts.flows.Add(1)
	defer e.counts.flows.Add(-1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		carryPackets(guest, other, e.Clock)
	}()
	carryPackets(other, guest, e.Clock)
	_, _ = guest.Close(), other.Close()
	<-done
}

// carryPackets carries packets until none has come for flowTimeout, or a connection is closed. It goes on after
// ECONNREFUSED: a server may start to listen later.
func carryPackets(to, from net.Conn, c clock.PassiveClock) {
	defer func() { _, _ = to.Close(), from.Close() }()
	packet := make([]byte, flowPacket+1)
	for {
		_ = from.SetReadDeadline(c.Now().Add(flowTimeout))
		n, err := from.Read(packet)
		if err == nil && n <= flowPacket {
			_ = to.SetReadDeadline(c.Now().Add(flowTimeout))
			_, err = to.Write(packet[:n])
		}
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}
