// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bytes"
	"encoding/binary"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Forever is the duration of a lease that never ends (RFC 2131, 3.3).
const Forever = math.MaxUint32 * time.Second

// Answer returns a server's answer to a packet of a client, nil for none: a lease to whoever asks for one, and a refusal
// of any other address.
func Answer(request []byte, l Lease, hostname string) []byte {
	if len(request) < offsetOptions || !bytes.Equal(request[offsetCookie:offsetOptions], cookie) {
		return nil
	}
	options, err := parseOptions(request[offsetOptions:])
	if err != nil || len(options[optionKind]) != 1 {
		return nil
	}
	kind, ok := answerKind(request, options, l)
	if !ok {
		return nil
	}
	p := make([]byte, offsetOptions, minPacket)
	copy(p, request[:offsetSeconds])
	p[0], p[3] = opReply, 0
	copy(p[offsetFlags:], request[offsetFlags:offsetYourAddress])
	copy(p[offsetMAC:], request[offsetMAC:offsetServerName])
	copy(p[offsetCookie:], cookie)
	p = append(p, optionKind, 1, kind)
	p = appendOption(p, optionServer, l.Server.AsSlice())
	if kind != kindNAK {
		copy(p[offsetYourAddress:], l.Address.Addr().AsSlice())
		p = appendLease(p, l, hostname)
	}
	return append(p, optionEnd)
}

// answerKind returns the kind of the answer to a packet, false for none.
func answerKind(request []byte, options map[byte][]byte, l Lease) (kind byte, ok bool) {
	switch options[optionKind][0] {
	case kindDiscover:
		return kindOffer, true
	case kindInform:
		return kindACK, true
	case kindRequest:
		if server := options[optionServer]; len(server) == 4 && netip.AddrFrom4([4]byte(server)) != l.Server {
			return 0, false // it takes the offer of another
		}
		if wanted := wantedAddress(request, options); wanted.IsValid() && wanted != l.Address.Addr() {
			return kindNAK, true
		}
		return kindACK, true
	}
	return 0, false
}

// wantedAddress returns the address that a client asks for, or has already.
func wantedAddress(request []byte, options map[byte][]byte) netip.Addr {
	if wanted := options[optionRequested]; len(wanted) == 4 {
		return netip.AddrFrom4([4]byte(wanted))
	}
	if has := netip.AddrFrom4([4]byte(request[offsetClientAddress:offsetYourAddress])); !has.IsUnspecified() {
		return has
	}
	return netip.Addr{}
}

func appendLease(p []byte, l Lease, hostname string) []byte {
	p = appendOption(p, optionMask, net.CIDRMask(l.Address.Bits(), 32))
	p = appendOption(p, optionRouter, l.Router.AsSlice())
	var resolvers []byte
	for _, r := range l.Resolvers {
		resolvers = append(resolvers, r.AsSlice()...)
	}
	p = appendOption(p, optionResolvers, resolvers)
	p = appendOption(p, optionDuration, binary.BigEndian.AppendUint32(nil, uint32(l.Duration/time.Second))) //nolint:gosec // at most Forever
	p = appendOption(p, optionMTU, binary.BigEndian.AppendUint16(nil, uint16(l.MTU)))                       //nolint:gosec // small
	p = appendOption(p, optionHostname, []byte(hostname))
	return appendOption(p, optionDomain, []byte(strings.Join(l.Search, " ")))
}

// appendOption appends an option, unless it is empty.
func appendOption(p []byte, option byte, value []byte) []byte {
	if len(value) == 0 {
		return p
	}
	value = value[:min(len(value), math.MaxUint8)]
	return append(append(p, option, byte(len(value))), value...) //nolint:gosec // at most 255
}
