// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"cloudnative.tw/drover/internal/machine/control"
)

const (
	// pingTimeout is how long a flow of pings lasts after the last one that the guest sent.
	pingTimeout = 10 * time.Second
	// pingsASecond is how many pings a guest may send in the long run, and maxPings at once.
	pingsASecond, maxPings = 100, 100
	// pingQueue is how many pings of a flow may wait to be carried on.
	pingQueue = 4
)

// pingKey names a flow of pings, which have one identifier.
type pingKey struct {
	other netip.Addr
	id    uint16
	// sent is the type of what the guest sends: requests, or the answers to those of another machine.
	sent header.ICMPv4Type
}

// received returns the type of what the guest gets.
func (k pingKey) received() header.ICMPv4Type {
	if k.sent == header.ICMPv4Echo {
		return header.ICMPv4EchoReply
	}
	return header.ICMPv4Echo
}

// pings are the flows of pings, each with what the guest has sent that is yet to be carried on.
type pings struct {
	edge *Edge

	mu    sync.Mutex
	flows map[pingKey]chan header.ICMPv4
	pace  *rate.Limiter
}

func newPings() pings {
	return pings{flows: map[pingKey]chan header.ICMPv4{}, pace: rate.NewLimiter(pingsASecond, maxPings)}
}

// remove removes a flow, unless another has taken its place.
func (p *pings) remove(key pingKey, queue chan header.ICMPv4) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flows[key] == queue {
		delete(p.flows, key)
	}
}

// receive takes a message of ICMP that the guest has sent. Only pings and answers to pings go any further, and the
// gateway answers its own. One in fragments is dropped.
func (p *pings) receive(ip header.IPv4) {
	message := header.ICMPv4(ip.Payload())
	if ip.More() || ip.FragmentOffset() != 0 || len(message) < header.ICMPv4MinimumSize || message.Code() != 0 {
		p.edge.counts.dropped.Add(1)
		return
	}
	key := pingKey{addrPortOf(ip.DestinationAddress(), 0).Addr(), message.Ident(), message.Type()}
	switch {
	case key.sent != header.ICMPv4Echo && key.sent != header.ICMPv4EchoReply:
		p.edge.counts.dropped.Add(1)
	case key.sent == header.ICMPv4Echo && key.other == p.edge.Gateway():
		p.send(key, bytes.Clone(message))
	case !p.pace.AllowN(p.edge.Clock.Now(), 1):
		p.edge.counts.dropped.Add(1)
	default:
		p.enqueue(key, bytes.Clone(message))
	}
}

// enqueue has a ping carried on, or drops it if too many wait.
func (p *pings) enqueue(key pingKey, message header.ICMPv4) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.flows[key]
	if queue == nil {
		if key.sent != header.ICMPv4Echo { // nobody has asked
			return
		}
		if !p.edge.budget.takeFlow() {
			p.edge.noteRefusal(control.ICMP, key.other.String(), errNoMemory)
			return
		}
		queue = make(chan header.ICMPv4, pingQueue)
		p.flows[key] = queue
		go p.begin(key, queue)
	}
	select {
	case queue <- message:
	default:
	}
}

// begin carries on the pings of the guest to another.
func (p *pings) begin(key pingKey, queue chan header.ICMPv4) {
	outside, err := p.edge.dial(control.ICMP, key.id, netip.AddrPortFrom(key.other, 0))
	if err != nil {
		p.remove(key, queue)
		p.edge.budget.giveBackFlow()
		p.edge.noteRefusal(control.ICMP, key.other.String(), err)
		p.edge.link.sendUnreachable(header.ICMPv4ProtocolNumber, key.other, <-queue)
		return
	}
	defer p.edge.forgetOutside(outside)
	p.carry(key, queue, outside)
}

// accept carries on the pings of another machine to the guest. Their identifier is the port of that machine.
func (p *pings) accept(c control.PeerConn, conn net.Conn) error {
	if !p.edge.budget.takeFlow() {
		return errors.Join(errNoMemory, conn.Close())
	}
	key, queue := pingKey{c.From.Addr(), c.From.Port(), header.ICMPv4EchoReply}, make(chan header.ICMPv4, pingQueue)
	p.mu.Lock()
	p.flows[key] = queue
	p.mu.Unlock()
	go p.carry(key, queue, conn)
	return nil
}

// carry carries pings until the guest has sent none for a while, or the connection ends.
func (p *pings) carry(key pingKey, queue chan header.ICMPv4, conn net.Conn) {
	p.edge.counts.flows.Add(1)
	defer p.edge.counts.flows.Add(-1)
	defer p.edge.budget.giveBackFlow()
	defer p.remove(key, queue)
	over := make(chan struct{})
	defer func() { <-over }()
	defer func() { _ = conn.Close() }()
	go func() {
		defer close(over)
		p.receiveAnswers(key, conn)
	}()
	timer := p.edge.Clock.NewTimer(pingTimeout)
	defer func() { timer.Stop() }()
	for {
		select {
		case message := <-queue:
			message.SetChecksum(0)
			message.SetChecksum(^checksum.Checksum(message, 0))
			_ = conn.SetWriteDeadline(p.edge.Clock.Now().Add(pingTimeout))
			if _, err := conn.Write(message); err != nil {
				return
			}
			timer.Stop()
			timer = p.edge.Clock.NewTimer(pingTimeout) // not Reset: a FakeClock blocks on a timer that is reset after it fired
		case <-timer.C():
			return
		case <-over:
			return
		case <-p.edge.context.Done():
			return
		}
	}
}

// receiveAnswers gives the guest what comes from another, until the connection ends. Other types of ICMP are dropped.
func (p *pings) receiveAnswers(key pingKey, conn net.Conn) {
	message := make(header.ICMPv4, flowPacket)
	for {
		n, err := conn.Read(message)
		if err != nil {
			return
		}
		if n >= header.ICMPv4MinimumSize && n <= p.edge.MTU-header.IPv4MinimumSize && message.Type() == key.received() && message.Code() == 0 {
			p.send(key, bytes.Clone(message[:n]))
		}
	}
}

// send sends the guest a message of a flow.
func (p *pings) send(key pingKey, message header.ICMPv4) {
	message.SetType(key.received())
	message.SetIdent(key.id)
	message.SetChecksum(0)
	message.SetChecksum(^checksum.Checksum(message, 0))
	p.edge.link.sendIPv4(header.ICMPv4ProtocolNumber, key.other, p.edge.Address.Addr(), message)
}

// dialPing returns a socket for pings of an address. The kernel gives them an identifier of its own.
func dialPing(to netip.Addr) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, os.NewSyscallError("opening a socket for pings, which net.ipv4.ping_group_range must allow", err)
	}
	socket := os.NewFile(uintptr(fd), "ping")
	defer func() { _ = socket.Close() }()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return nil, os.NewSyscallError("connecting", err)
	}
	return net.FileConn(socket)
}
