// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// frameOf returns a frame with a ping of the gateway.
func frameOf(mac net.HardwareAddr, from, to netip.Addr) []byte {
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.ICMPv4MinimumSize)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(mac), DstAddr: tcpip.LinkAddress(gatewayMAC), Type: header.IPv4ProtocolNumber})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: header.IPv4MinimumSize + header.ICMPv4MinimumSize, TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: addressOf(from), DstAddr: addressOf(to),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.ICMPv4(ip.Payload()).SetType(header.ICMPv4Echo)
	return frame
}

// errNoDial : tests of frames leave the host alone.
var errNoDial = errors.New("no connection is made")

// newIdleEdge returns an edge that no QEMU is connected to.
func newIdleEdge(t testing.TB) *Edge {
	t.Helper()
	e, err := New(context.WithoutCancel(t.Context()), control.NetworkConfig{
		MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 9}, Address: netip.MustParsePrefix("10.213.0.9/16"), MTU: 1500, Hostname: "a",
	}, Options{Routes: allRoutes{}, Clock: clock.RealClock{}, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoDial }})
	assert.NoError(t, err)
	t.Cleanup(func() {
		e.stop()
		e.stack.Close()
	})
	return e
}

// TestSpoofedFrames checks that only what a guest sends as itself goes any further.
func TestSpoofedFrames(t *testing.T) {
	t.Parallel()
	e := newIdleEdge(t)
	guest, gateway, other := e.Address.Addr(), e.Gateway(), netip.MustParseAddr("10.213.0.10")
	for name, c := range map[string]struct {
		frame    []byte
		answered bool
	}{
		"its own":              {frameOf(e.MAC, guest, gateway), true},
		"another's MAC":        {frameOf(net.HardwareAddr{0x52, 0x54, 0, 0, 0, 10}, guest, gateway), false},
		"another's address":    {frameOf(e.MAC, other, gateway), false},
		"the gateway's":        {frameOf(e.MAC, gateway, gateway), false},
		"a ping of another":    {frameOf(e.MAC, guest, other), false},
		"a runt":               {frameOf(e.MAC, guest, gateway)[:13], false},
		"half a header":        {frameOf(e.MAC, guest, gateway)[:20], false},
		"shorter than it says": {frameOf(e.MAC, guest, gateway)[:36], false},
		"nothing":              {nil, false},
	} {
		e.receive(c.frame)
		assert.Equal(t, name+": answered", e.link.Drain() > 0, c.answered)
	}
}

// FuzzFrames checks that no frame of a guest breaks its edge.
func FuzzFrames(f *testing.F) {
	e := newIdleEdge(f)
	f.Add(frameOf(e.MAC, e.Address.Addr(), e.Gateway()))
	f.Add(frameOf(e.MAC, netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255")))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) > maxFrame {
			return
		}
		if len(frame) > 11 {
			copy(frame[6:], e.MAC) // else it goes no further
		}
		e.receive(frame)
		e.link.Drain()
		e.receive(frameOf(e.MAC, e.Address.Addr(), e.Gateway()))
		assert.Require(t, e.link.Drain() != 0, "the edge does not answer any more")
	})
}
