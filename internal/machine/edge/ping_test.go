// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

const firstID, secondID = 4711, 4712

// ping sends a ping, or another message of ICMP.
func (g *guest) ping(to netip.Addr, kind header.ICMPv4Type, id uint16) {
	frame := frameOf(g.config.MAC, g.config.Address.Addr(), to)
	message := header.ICMPv4(frame[header.EthernetMinimumSize+header.IPv4MinimumSize:])
	message.SetType(kind)
	message.SetIdent(id)
	message.SetSequence(id + 1)
	g.sendFrame(frame)
}

// wantAnswer waits for the answer to a ping, which must be the next that comes.
func (g *guest) wantAnswer(t *testing.T, from netip.Addr, id uint16) {
	t.Helper()
	ip := assert.Receive(t, "an answer to a ping", g.icmp)
	message := header.ICMPv4(ip.Payload())
	assert.True(t, message.Type() == header.ICMPv4EchoReply && ip.SourceAddress() == addressOf(from) && message.Ident() == id && message.Sequence() == id+1,
		"the answer is %v of %s, with the identifier %d and the number %d", message.Type(), ip.SourceAddress(), message.Ident(), message.Sequence())
}

// wantUnreachable waits for the refusal of a ping.
func (g *guest) wantUnreachable(t *testing.T, to netip.Addr, id uint16) {
	t.Helper()
	message := header.ICMPv4(assert.Receive(t, "a refusal", g.icmp).Payload())
	assert.Require(t, message.Type() == header.ICMPv4DstUnreachable && message.Code() == header.ICMPv4AdminProhibited,
		"the refusal is %v, %v", message.Type(), message.Code())
	original := header.IPv4(message.Payload())
	assert.True(t, original.DestinationAddress() == addressOf(to) && header.ICMPv4(original.Payload()).Ident() == id,
		"refused is a ping of %s with the identifier %d", original.DestinationAddress(), header.ICMPv4(original.Payload()).Ident())
}

// TestPingOfPeer checks that it is the other guest that answers a ping, that pings do not get mixed up, and that no other
// message reaches it.
func TestPingOfPeer(t *testing.T) {
	t.Parallel()
	other, silent := netip.MustParseAddr("10.213.0.10"), netip.MustParseAddr("10.213.0.11")
	b := newWorld(t, func(c *control.NetworkConfig, _ *Options) { c.Address, c.MAC[5] = netip.PrefixFrom(other, 16), 10 })
	a := newWorld(t, func(c *control.NetworkConfig, o *Options) {
		c.Address, c.MAC[5] = netip.MustParsePrefix("10.213.0.8/16"), 8
		o.Peers = board{c.Address.Addr(), map[netip.Addr]*Edge{other: b.Edge, silent: newIdleEdge(t)}}
	})
	a.guest.ping(silent, header.ICMPv4Echo, firstID) // whose guest does not answer
	a.guest.ping(other, header.ICMPv4Timestamp, firstID)
	a.guest.ping(other, header.ICMPv4EchoReply, firstID) // which nobody has asked for
	for _, id := range []uint16{firstID, secondID, firstID} {
		a.guest.ping(other, header.ICMPv4Echo, id)
		a.guest.wantAnswer(t, other, id)
	}
	if got := b.Statistics(); got.Flows != 2 || got.PacketsIn > 4 { // three pings, and an answer to the guest's ARP
		t.Errorf("the other has %+v", got)
	}
	a.guest.ping(netip.MustParseAddr("10.213.0.12"), header.ICMPv4Echo, firstID)
	a.guest.wantUnreachable(t, netip.MustParseAddr("10.213.0.12"), firstID)
}

// TestPingOutside checks that a ping of the outside is carried on by a socket of the host, if the policy allows it before
// and after the socket is there.
func TestPingOutside(t *testing.T) {
	t.Parallel()
	moving, dialled := netip.MustParseAddr("198.51.100.8"), make(chan struct{})
	w := newWorld(t, func(_ *control.NetworkConfig, o *Options) {
		o.Routes = movingRoutes{moving, dialled}
		o.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
			if address == netip.AddrPortFrom(moving, 0).String() {
				close(dialled)
			}
			return answerPings(), nil
		}
	})
	w.guest.ping(outsider, header.ICMPv4Echo, firstID)
	w.guest.wantAnswer(t, outsider, firstID)
	for _, to := range []netip.Addr{moving, netip.MustParseAddr("169.254.169.254")} {
		w.guest.ping(to, header.ICMPv4Echo, firstID)
		w.guest.wantUnreachable(t, to, firstID)
	}
	last := w.Statistics().LastRefused
	assert.True(t, len(last) == 2 && last[0].Protocol == control.ICMP && last[0].Target == moving.String(), "refused was %+v", last)
}

// answerPings returns a ping socket whose other end answers, with an identifier of its own as the kernel's.
func answerPings() net.Conn {
	here, there := net.Pipe()
	go func() {
		message := make(header.ICMPv4, 1500)
		for n, err := there.Read(message); err == nil; n, err = there.Read(message) {
			message.SetType(header.ICMPv4EchoReply)
			message.SetIdent(secondID)
			_, _ = there.Write(message[:n])
		}
	}()
	return here
}

// TestPingSocket checks that a ping socket of the kernel sends pings, and gets their answers.
func TestPingSocket(t *testing.T) {
	t.Parallel()
	var conn net.Conn
	inOwnNetwork(t, func() (err error) {
		if err = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err == nil { // of this network
			conn, err = DialHost(t.Context(), "icmp4", "127.0.0.1:0")
		}
		return err
	})
	defer func() { assert.NoError(t, conn.Close()) }()
	message := make(header.ICMPv4, 64)
	message.SetType(header.ICMPv4Echo)
	message.SetSequence(7)
	assert.NoError(t, assert.ErrorOf(conn.Write(message)))
	message = make(header.ICMPv4, 1500)
	n, err := conn.Read(message)
	assert.NoError(t, err)
	assert.True(t, n == 64 && message.Type() == header.ICMPv4EchoReply && message.Sequence() == 7,
		"the answer has %d bytes, the type %v and the number %d", n, message.Type(), message.Sequence())
}

// inOwnNetwork calls f in a network namespace of its own, in which the loopback interface is up.
func inOwnNetwork(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it makes a network namespace, which takes root")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good, so that the thread ends
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = errors.Join(setLoopbackUp(), f())
		}
		done <- err
	}()
	assert.NoError(t, <-done)
}

func setLoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// movingRoutes lead outside, but to one address only until it is dialled.
type movingRoutes struct {
	address netip.Addr
	dialled <-chan struct{}
}

func (r movingRoutes) CheckUnicast(to netip.Addr) error {
	select {
	case <-r.dialled:
		if to == r.address {
			return errors.New("it is the host's own by now")
		}
	default:
	}
	return nil
}

// TestPingsEnd checks that flows of pings use the budget of flows, and give it back after a while. A guest cannot send any
// number of pings.
func TestPingsEnd(t *testing.T) {
	t.Parallel()
	e, now := newIdleEdge(t), testingclock.NewFakeClock(time.Now())
	here, there := net.Pipe()
	defer func() { _ = there.Close() }()
	e.Clock, e.Dial = now, func(context.Context, string, string) (net.Conn, error) { return here, nil }
	for range 2 * maxPings {
		e.receive(frameOf(e.MAC, e.Address.Addr(), outsider))
	}
	got := e.Statistics().Dropped
	assert.True(t, got == maxPings, "of %d pings at once %d were dropped", 2*maxPings, got)
	sent := make([]byte, 64)
	assert.NoError(t, assert.ErrorOf(there.Read(sent)))
	left := func() int {
		e.budget.mu.Lock()
		defer e.budget.mu.Unlock()
		return e.budget.left
	}
	if got := left(); got != control.EdgeMemoryBytes-flowShare {
		t.Errorf("a flow leaves %d bytes", got)
	}
	go func() {
		_, _ = io.Copy(io.Discard, there)
	}()
	assert.Eventually(t, "the flow ends", func(testing.TB) error {
		now.Step(pingTimeout)
		return assert.ErrorUnless(left() == control.EdgeMemoryBytes && e.Statistics().Flows == 0, "it goes on")
	})
	assert.True(t, len(e.pings.flows) == 0, "remembered are %v", e.pings.flows)
}
