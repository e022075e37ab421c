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
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// board connects machines by their addresses, as the broker does.
type board struct {
	from  netip.Addr
	peers map[netip.Addr]*Edge
}

func (board) Lookup(context.Context, string) (netip.Addr, error) {
	return netip.Addr{}, failure.ErrNoMachine
}

func (b board) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	peer := b.peers[to.Addr()]
	if peer == nil {
		return nil, failure.ErrNoMachine
	}
	here, there, err := control.ConnectPeers(protocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()
	return here, peer.Accept(ctx, control.PeerConn{Protocol: protocol, From: netip.AddrPortFrom(b.from, from), To: to}, there)
}

// TestPeers checks that one machine reaches another by TCP and by UDP, and is seen there with its own address and port.
func TestPeers(t *testing.T) {
	t.Parallel()
	const other = "10.213.0.10"
	b := newWorld(t, func(c *control.NetworkConfig, _ *Options) {
		c.Address, c.MAC[5] = netip.MustParsePrefix(other+"/16"), 10
	})
	a := newWorld(t, func(c *control.NetworkConfig, o *Options) {
		o.Peers = board{c.Address.Addr(), map[netip.Addr]*Edge{netip.MustParseAddr(other): b.Edge}}
	})
	seen := make(chan net.Addr, 1)
	listener, err := gonet.ListenTCP(b.guest.stack, fullAddress(netip.MustParseAddrPort(other+":80")), ipv4.ProtocolNumber)
	assert.NoError(t, err)
	go serveEach(listener, func(conn net.Conn) {
		seen <- conn.RemoteAddr()
		echo(conn)
	})
	conn, err := a.dial(t, netip.MustParseAddrPort(other+":80"))
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "hello")))
	assert.NoError(t, conn.(*gonet.TCPConn).CloseWrite())
	got, err := io.ReadAll(conn)
	assert.True(t, err == nil && string(got) == "hello", "the other answers %q, %v", got, err)
	from := <-seen
	assert.True(t, from.String() == conn.LocalAddr().String(), "the other sees %s, want %s", from, conn.LocalAddr())
	_, err = a.dial(t, netip.MustParseAddrPort(other+":81"))
	assert.ErrorSays(t, "a port that the other does not serve", err, "refused")
	_, err = a.dial(t, netip.MustParseAddrPort("10.213.0.11:80"))
	assert.ErrorSays(t, "nobody's address", err, "refused")

	at := fullAddress(netip.MustParseAddrPort(other + ":53"))
	packets, err := gonet.DialUDP(b.guest.stack, &at, nil, ipv4.ProtocolNumber)
	assert.NoError(t, err)
	go func() {
		packet := make([]byte, 1500)
		for {
			n, from, err := packets.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(append([]byte(from.String()+" "), packet[:n]...), from)
		}
	}()
	t.Cleanup(func() { _ = packets.Close() })
	flow, err := gonet.DialUDP(a.guest.stack, nil, &at, ipv4.ProtocolNumber)
	assert.NoError(t, err)
	packet := make([]byte, 1500)
	for _, text := range []string{"one", "two"} {
		assert.NoError(t, assert.ErrorOf(io.WriteString(flow, text)))
		assert.NoError(t, flow.SetReadDeadline(time.Now().Add(time.Minute)))
		n, err := flow.Read(packet)
		assert.NoError(t, err)
		want := flow.LocalAddr().String() + " " + text
		assert.True(t, string(packet[:n]) == want, "the other answers %q, want %q", packet[:n], want)
	}
	assert.NoError(t, flow.Close())
}

// TestPeersPorts checks that a machine reaches several ports of another from one port of its own, by TCP and by UDP.
func TestPeersPorts(t *testing.T) {
	t.Parallel()
	w, from := newWorld(t, nil), netip.MustParseAddrPort("10.213.0.10:40000")
	for _, port := range []uint16{80, 81} {
		at := netip.AddrPortFrom(w.Address.Addr(), port)
		listener, err := gonet.ListenTCP(w.guest.stack, fullAddress(at), ipv4.ProtocolNumber)
		assert.NoError(t, err)
		go serveEach(listener, echo)
		packets, err := gonet.DialUDP(w.guest.stack, new(fullAddress(at)), nil, ipv4.ProtocolNumber)
		assert.NoError(t, err)
		go echoPackets(packets)
		t.Cleanup(func() { _ = packets.Close() })
	}
	for _, protocol := range []string{control.TCP, control.UDP} {
		conns := map[string]net.Conn{}
		for _, port := range []uint16{80, 81} {
			here, there, err := control.ConnectPeers(protocol)
			assert.NoError(t, err)
			err = w.Accept(t.Context(), control.PeerConn{Protocol: protocol, From: from, To: netip.AddrPortFrom(w.Address.Addr(), port)}, there)
			assert.NoError(t, errors.Join(err, there.Close()))
			conn, err := net.FileConn(here)
			assert.NoError(t, errors.Join(err, here.Close()))
			t.Cleanup(func() { _ = conn.Close() })
			conns[fmt.Sprint(protocol, port)] = conn
		}
		for text, conn := range conns {
			assert.NoError(t, assert.ErrorOf(io.WriteString(conn, text)))
			answer := make([]byte, 5)
			_, err := io.ReadFull(conn, answer)
			assert.True(t, err == nil && string(answer) == text, "%s answers %q, %v", text, answer, err)
		}
	}
}

func echoPackets(conn *gonet.UDPConn) {
	packet := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(packet[:n], from)
	}
}
