// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/waiter"

	"cloudnative.tw/drover/internal/machine/control"
)

const (
	// keepAliveIdle is after how long a connection that is silent is checked, and keepAliveInterval is between checks. A
	// guest that was reset answers the first one; one that is paused has as many as it has of maxResends.
	keepAliveIdle     = time.Minute
	keepAliveInterval = 15 * time.Second
	keepAlives        = int(maxResends * maxResend / keepAliveInterval)
	// maxPacket is more than a packet of UDP has.
	maxPacket = 64 << 10
	// flowPacket is how much of a packet of UDP is carried on.
	flowPacket = 9 << 10
)

// newGuestConn returns a connection of the guest, which has a share of the budget.
func newGuestConn(queue *waiter.Queue, endpoint tcpip.Endpoint, share int) *gonet.TCPConn {
	configureEndpoint(endpoint, share)
	return gonet.NewTCPConn(queue, endpoint)
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

func newGuestFlow(queue *waiter.Queue, endpoint tcpip.Endpoint) *gonet.UDPConn {
	options := endpoint.SocketOptions()
	options.SetSendBufferSize(flowShare/4, true)
	options.SetReceiveBufferSize(flowShare/4, true)
	return gonet.NewUDPConn(queue, endpoint)
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

// join carries data between the guest and another until both have ended.
func (e *Edge) join(guest, other net.Conn, share int) {
	boundBuffers(other, share)
	e.counts.connections.Add(1)
	defer e.counts.connections.Add(-1)
	_, size := buffersOf(share)
	control.Join(guest, other, size)
}

// joinFlow carries packets until none has come for a while in either direction.
func (e *Edge) joinFlow(guest, other net.Conn) {
	e.counts.flows.Add(1)
	defer e.counts.flows.Add(-1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.carryPackets(guest, other)
	}()
	e.carryPackets(other, guest)
	_, _ = guest.Close(), other.Close()
	<-done
}

// carryPackets carries packets until none has come for flowTimeout, or a connection is closed. It goes on after
// ECONNREFUSED: a server may start to listen later.
func (e *Edge) carryPackets(to, from net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	packet := make([]byte, flowPacket)
	for {
		_ = from.SetReadDeadline(e.Clock.Now().Add(flowTimeout))
		n, err := from.Read(packet)
		if err == nil {
			_ = to.SetReadDeadline(e.Clock.Now().Add(flowTimeout))
			_, err = to.Write(packet[:n])
		}
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}
