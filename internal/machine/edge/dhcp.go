// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"math"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"cloudnative.tw/drover/internal/machine/control"
)

// leaseForever is the duration in seconds of a lease that never ends (RFC 2131, 3.3).
const leaseForever = math.MaxUint32

// isDHCP reports whether a packet is for a DHCP server.
func isDHCP(ip header.IPv4) bool {
	udp := header.UDP(ip.Payload())
	return ip.TransportProtocol() == header.UDPProtocolNumber && !ip.More() && ip.FragmentOffset() == 0 &&
		len(udp) >= header.UDPMinimumSize && udp.DestinationPort() == dhcpv4.ServerPort && udp.SourcePort() == dhcpv4.ClientPort
}

// answerDHCP leases the guest its address, which it has as long as it exists.
func (l *link) answerDHCP(packet []byte) {
	reply, err := leaseAddress(packet, l.config)
	if err != nil || reply == nil {
		return
	}
	l.sendUDP(netip.AddrPortFrom(l.config.Gateway(), dhcpv4.ServerPort), netip.AddrPortFrom(allHosts, dhcpv4.ClientPort), reply.ToBytes())
}

// allHosts is the address of all hosts of a network.
var allHosts = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// leaseAddress returns the answer to a packet of the guest: a lease of its address, or a refusal of any other one. The
// answer is nil if the packet is not for this server.
func leaseAddress(packet []byte, c control.NetworkConfig) (*dhcpv4.DHCPv4, error) {
	request, err := dhcpv4.FromBytes(packet)
	if err != nil || request.OpCode != dhcpv4.OpcodeBootRequest {
		return nil, err
	}
	server := net.IP(c.Gateway().AsSlice())
	kind := answerType(request, server, c.Address.Addr().AsSlice())
	if kind == dhcpv4.MessageTypeNone {
		return nil, nil //nolint:nilnil // Nil is for no answer.
	}
	options := []dhcpv4.Modifier{dhcpv4.WithMessageType(kind), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server))}
	if kind != dhcpv4.MessageTypeNak {
		options = append(options,
			dhcpv4.WithYourIP(c.Address.Addr().AsSlice()), dhcpv4.WithNetmask(net.CIDRMask(c.Address.Bits(), 32)),
			dhcpv4.WithRouter(server), dhcpv4.WithDNS(server), dhcpv4.WithLeaseTime(leaseForever),
			dhcpv4.WithGeneric(dhcpv4.OptionInterfaceMTU, dhcpv4.Uint16(c.MTU).ToBytes()), //nolint:gosec // small
			dhcpv4.WithOption(dhcpv4.OptHostName(c.Hostname)))
		if c.Domain != "" {
			options = append(options, dhcpv4.WithOption(dhcpv4.OptDomainName(c.Domain)))
		}
	}
	return dhcpv4.NewReplyFromRequest(request, options...)
}

// answerType returns the type of the answer to a packet, or MessageTypeNone for no answer.
func answerType(request *dhcpv4.DHCPv4, server, address net.IP) dhcpv4.MessageType {
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		return dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeInform:
		return dhcpv4.MessageTypeAck
	case dhcpv4.MessageTypeRequest:
		if chosen := request.ServerIdentifier(); chosen != nil && !chosen.Equal(server) {
			return dhcpv4.MessageTypeNone
		}
		wanted := request.RequestedIPAddress()
		if wanted == nil && !request.ClientIPAddr.IsUnspecified() {
			wanted = request.ClientIPAddr
		}
		if wanted != nil && !wanted.Equal(address) {
			return dhcpv4.MessageTypeNak
		}
		return dhcpv4.MessageTypeAck
	default:
		return dhcpv4.MessageTypeNone
	}
}
