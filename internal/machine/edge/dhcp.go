// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"math"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// Ports, kinds of messages, options and the fixed part of a packet of DHCP (RFC 951, 2131 and 2132).
const (
	dhcpServerPort, dhcpClientPort = 67, 68

	dhcpDiscover, dhcpOffer, dhcpRequest, dhcpACK, dhcpNAK, dhcpInform = 1, 2, 3, 5, 6, 8

	optionPad       = 0
	optionMask      = 1
	optionRouter    = 3
	optionResolvers = 6
	optionHostname  = 12
	optionDomain    = 15
	optionMTU       = 26
	optionRequested = 50
	optionLease     = 51
	optionKind      = 53
	optionServer    = 54
	optionEnd       = 255

	dhcpCookie    = 236 // where the options' cookie is
	dhcpOptions   = dhcpCookie + 4
	dhcpMinimum   = dhcpOptions + 60
	bootReply     = 2
	clientAddress = 12
	yourAddress   = 16
)

var optionsCookie = [4]byte{99, 130, 83, 99}

// leaseForever : the machine has its address as long as it exists.
const leaseForever = math.MaxUint32

// isDHCP reports whether a packet is for a DHCP server.
func isDHCP(ip header.IPv4) bool {
	udp := header.UDP(ip.Payload())
	return ip.TransportProtocol() == header.UDPProtocolNumber && !ip.More() && ip.FragmentOffset() == 0 &&
		len(udp) >= header.UDPMinimumSize && udp.DestinationPort() == dhcpServerPort && udp.SourcePort() == dhcpClientPort
}

// answerDHCP leases the guest its address.
func (e *Edge) answerDHCP(request []byte) {
	if len(request) < dhcpOptions || [4]byte(request[dhcpCookie:dhcpOptions]) != optionsCookie {
		return
	}
	options := parseOptions(request[dhcpOptions:])
	if len(options[optionKind]) != 1 {
		return
	}
	reply := e.dhcpReply(request, options)
	if reply == nil {
		return
	}
	datagram := make([]byte, header.UDPMinimumSize, header.UDPMinimumSize+len(reply))
	header.UDP(datagram).Encode(&header.UDPFields{
		SrcPort: dhcpServerPort, DstPort: dhcpClientPort, Length: uint16(header.UDPMinimumSize + len(reply)), //nolint:gosec // one frame
	}) // whose checksum may be left out
	e.sendIPv4(header.UDPProtocolNumber, e.Gateway(), netip.AddrFrom4([4]byte(net.IPv4bcast.To4())), append(datagram, reply...))
}

// dhcpReply returns the answer, nil for none.
func (e *Edge) dhcpReply(request []byte, options map[byte][]byte) []byte {
	var kind byte
	switch options[optionKind][0] {
	case dhcpDiscover:
		kind = dhcpOffer
	case dhcpRequest:
		kind = dhcpACK
		if server := options[optionServer]; len(server) == 4 && netip.AddrFrom4([4]byte(server)) != e.Gateway() {
			return nil // it takes the offer of another
		}
		if wanted := wantedAddress(request, options); wanted.IsValid() && wanted != e.Address.Addr() {
			kind = dhcpNAK
		}
	case dhcpInform:
		kind = dhcpACK
	default:
		return nil
	}
	reply := make([]byte, dhcpOptions, dhcpMinimum)
	copy(reply, request[:dhcpCookie])
	reply[0], reply[3] = bootReply, 0
	clear(reply[8:10])
	clear(reply[yourAddress:28])
	clear(reply[44:dhcpCookie])
	copy(reply[dhcpCookie:], optionsCookie[:])
	reply = append(reply, optionKind, 1, kind)
	reply = appendOption(reply, optionServer, e.Gateway().AsSlice())
	if kind != dhcpNAK {
		copy(reply[yourAddress:], e.Address.Addr().AsSlice())
		reply = e.appendLease(reply)
	}
	return append(reply, optionEnd)
}

// wantedAddress returns the address that a client asks for, or has already.
func wantedAddress(request []byte, options map[byte][]byte) netip.Addr {
	if wanted := options[optionRequested]; len(wanted) == 4 {
		return netip.AddrFrom4([4]byte(wanted))
	}
	if has := netip.AddrFrom4([4]byte(request[clientAddress:yourAddress])); !has.IsUnspecified() {
		return has
	}
	return netip.Addr{}
}

func (e *Edge) appendLease(reply []byte) []byte {
	reply = appendOption(reply, optionMask, net.CIDRMask(e.Address.Bits(), 32))
	reply = appendOption(reply, optionRouter, e.Gateway().AsSlice())
	reply = appendOption(reply, optionResolvers, e.Gateway().AsSlice())
	reply = appendOption(reply, optionLease, binary.BigEndian.AppendUint32(nil, leaseForever))
	reply = appendOption(reply, optionMTU, binary.BigEndian.AppendUint16(nil, uint16(e.MTU))) //nolint:gosec // small
	if e.Hostname != "" {
		reply = appendOption(reply, optionHostname, []byte(e.Hostname))
	}
	if e.Domain != "" {
		reply = appendOption(reply, optionDomain, []byte(e.Domain))
	}
	return reply
}

func appendOption(packet []byte, option byte, value []byte) []byte {
	value = value[:min(len(value), math.MaxUint8)]
	return append(append(packet, option, byte(len(value))), value...) //nolint:gosec // at most 255
}

// parseOptions returns the values of options by their numbers, those before one that is cut off.
func parseOptions(p []byte) map[byte][]byte {
	options := map[byte][]byte{}
	for len(p) > 0 && p[0] != optionEnd {
		if p[0] == optionPad {
			p = p[1:]
			continue
		}
		if len(p) < 2 || len(p) < 2+int(p[1]) {
			break
		}
		options[p[0]] = p[2 : 2+int(p[1])]
		p = p[2+int(p[1]):]
	}
	return options
}
