// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"cloudnative.tw/drover/internal/guest/dhcp"
)

// Ports of DHCP.
const dhcpServerPort, dhcpClientPort = 67, 68

// isDHCP reports whether a packet is for a DHCP server.
func isDHCP(ip header.IPv4) bool {
	udp := header.UDP(ip.Payload())
	return ip.TransportProtocol() == header.UDPProtocolNumber && !ip.More() && ip.FragmentOffset() == 0 &&
		len(udp) >= header.UDPMinimumSize && udp.DestinationPort() == dhcpServerPort && udp.SourcePort() == dhcpClientPort
}

// answerDHCP leases the guest its address, which it has as long as it exists.
func (e *Edge) answerDHCP(request []byte) {
	lease := dhcp.Lease{
		Address: e.Address, Router: e.Gateway(), Resolvers: []netip.Addr{e.Gateway()}, MTU: e.MTU, Server: e.Gateway(), Duration: dhcp.Forever,
	}
	if e.Domain != "" {
		lease.Search = []string{e.Domain}
	}
	reply := dhcp.Answer(request, lease, e.Hostname)
	if reply == nil {
		return
	}
	e.sendUDP(netip.AddrPortFrom(e.Gateway(), dhcpServerPort), netip.AddrPortFrom(allHosts, dhcpClientPort), reply)
}

// allHosts is the address of all hosts of a network.
var allHosts = netip.AddrFrom4([4]byte{255, 255, 255, 255})
