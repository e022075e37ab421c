// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// guest is a guest and its QEMU.
type guest struct {
	conn   net.Conn
	config control.NetworkConfig
	stack  *stack.Stack
	leases chan []byte
	icmp   chan header.IPv4 // answers to pings, and errors, if there is room
}

func newGuest(t *testing.T, conn net.Conn, c control.NetworkConfig) *guest {
	t.Helper()
	g := &guest{conn: conn, config: c, leases: make(chan []byte, 8), icmp: make(chan header.IPv4, 64)}
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	link := channel.New(queueLength, uint32(c.MTU), tcpip.LinkAddress(c.MAC)) //nolint:gosec // small
	if err := g.stack.CreateNIC(nic, ethernet.New(link)); err != nil {
		t.Fatal(err)
	}
	address := tcpip.AddressWithPrefix{Address: addressOf(c.Address.Addr()), PrefixLen: c.Address.Bits()}
	if err := g.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: address}, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	g.stack.SetRouteTable([]tcpip.Route{
		{Destination: address.Subnet(), NIC: nic},
		{Destination: header.IPv4EmptySubnet, Gateway: addressOf(c.Gateway()), NIC: nic},
	})
	go g.receive(link)
	go g.sendAll(t, link)
	t.Cleanup(g.stack.Close)
	return g
}

// receive gives the stack what comes, but for answers by DHCP, which the stack does not know.
func (g *guest) receive(link *channel.Endpoint) {
	for {
		var length [lengthBytes]byte
		if _, err := io.ReadFull(g.conn, length[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(g.conn, frame); err != nil {
			return
		}
		if header.Ethernet(frame).Type() == header.IPv4ProtocolNumber {
			ip := header.IPv4(frame[header.EthernetMinimumSize:])
			if u := header.UDP(ip.Payload()); ip.TransportProtocol() == header.UDPProtocolNumber && u.SourcePort() == dhcpv4.ServerPort {
				g.leases <- u.Payload()
				continue
			}
			if ip.TransportProtocol() == header.ICMPv4ProtocolNumber && header.ICMPv4(ip.Payload()).Type() != header.ICMPv4Echo {
				select {
				case g.icmp <- ip:
				default:
				}
			}
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(frame)})
		link.InjectInbound(0, p)
		p.DecRef()
	}
}

func (g *guest) sendAll(t *testing.T, link *channel.Endpoint) {
	for {
		p := link.ReadContext(t.Context())
		if p == nil {
			return
		}
		frame := p.ToView()
		g.sendFrame(frame.AsSlice())
		p.DecRef()
	}
}

func (g *guest) sendFrame(frame []byte) {
	_, _ = g.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)) //nolint:gosec // a frame
}

// sendDHCP sends a message of a client that has no address yet.
func (g *guest) sendDHCP(message *dhcpv4.DHCPv4) {
	packet := message.ToBytes()
	frame := append(make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.UDPMinimumSize), packet...)
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: tcpip.LinkAddress(g.config.MAC), DstAddr: header.EthernetBroadcastAddress, Type: header.IPv4ProtocolNumber})
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(header.IPv4MinimumSize + header.UDPMinimumSize + len(packet)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), //nolint:gosec // small
		SrcAddr: header.IPv4Any, DstAddr: header.IPv4Broadcast,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	header.UDP(ip.Payload()).Encode(&header.UDPFields{SrcPort: dhcpv4.ClientPort, DstPort: dhcpv4.ServerPort, Length: uint16(header.UDPMinimumSize + len(packet))}) //nolint:gosec // small
	g.sendFrame(frame)
}

// resolve asks the gateway for an address, and returns it, or the code of the error.
func (g *guest) resolve(t *testing.T, name string) string {
	t.Helper()
	conn, err := gonet.DialUDP(g.stack, nil, new(fullAddress(netip.AddrPortFrom(g.config.Gateway(), control.DNSPort))), ipv4.ProtocolNumber)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packet, err := query.Pack()
	assert.NoError(t, err)
	_, err = conn.Write(packet)
	assert.NoError(t, err)
	assert.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	packet = make([]byte, 1500)
	n, err := conn.Read(packet)
	assert.NoError(t, err)
	var answer dnsmessage.Message
	assert.NoError(t, answer.Unpack(packet[:n]))
	assert.Equal(t, "the answer has the ID", answer.ID, 77)
	if len(answer.Answers) == 0 {
		return answer.RCode.String()
	}
	return netip.AddrFrom4(answer.Answers[0].Body.(*dnsmessage.AResource).A).String()
}
