// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"time"
)

// Kinds of messages.
const (
	kindDiscover = 1
	kindOffer    = 2
	kindRequest  = 3
	kindACK      = 5
	kindNAK      = 6
	kindInform   = 8
)

// Options.
const (
	optionPad       = 0
	optionMask      = 1
	optionRouter    = 3
	optionResolvers = 6
	optionHostname  = 12
	optionDomain    = 15
	optionMTU       = 26
	optionRequested = 50
	optionDuration  = 51
	optionKind      = 53
	optionServer    = 54
	optionWanted    = 55
	optionEnd       = 255
)

// The fixed part of a packet (RFC 951 and 2131).
const (
	opRequest, opReply   = 1, 2
	hardwareEthernet     = 1
	addressLength        = 6
	flagBroadcast        = 0x8000
	offsetID             = 4
	offsetSeconds        = 8
	offsetFlags          = 10
	offsetClientAddress  = 12
	offsetYourAddress    = 16
	offsetMAC            = 28
	offsetServerName     = 44
	offsetCookie         = 236
	offsetOptions        = 240
	minPacket, maxPacket = offsetOptions + 60, 1500
)

var cookie = []byte{99, 130, 83, 99}

// message is what a client sends.
type message struct {
	kind      byte
	id        uint32
	mac       [addressLength]byte
	hostname  string
	requested netip.Addr // not valid for none
	server    netip.Addr
}

// encode returns the packet. It asks for answers to all hosts, since the client has no address yet.
func (m message) encode() []byte {
	p := make([]byte, offsetOptions, minPacket)
	p[0], p[1], p[2] = opRequest, hardwareEthernet, addressLength
	binary.BigEndian.PutUint32(p[offsetID:], m.id)
	binary.BigEndian.PutUint16(p[offsetFlags:], flagBroadcast)
	copy(p[offsetMAC:], m.mac[:])
	copy(p[offsetCookie:], cookie)
	p = append(p, optionKind, 1, m.kind)
	if m.requested.IsValid() {
		p = append(append(p, optionRequested, 4), m.requested.AsSlice()...)
	}
	if m.server.IsValid() {
		p = append(append(p, optionServer, 4), m.server.AsSlice()...)
	}
	if name := m.hostname[:min(len(m.hostname), 63)]; name != "" {
		p = append(append(p, optionHostname, byte(len(name))), name...) //nolint:gosec // at most 63
	}
	p = append(p, optionWanted, 5, optionMask, optionRouter, optionResolvers, optionDomain, optionMTU, optionEnd)
	return append(p, make([]byte, max(0, minPacket-len(p)))...)
}

// parse returns the kind of an answer and its lease, which is valid for an offer and an ACK.
func parse(p []byte, id uint32, mac [addressLength]byte) (kind byte, l Lease, err error) {
	if len(p) < offsetOptions || len(p) > maxPacket || p[0] != opReply || !bytes.Equal(p[offsetCookie:offsetOptions], cookie) {
		return 0, l, errors.New("it is no answer of a DHCP server")
	}
	if binary.BigEndian.Uint32(p[offsetID:]) != id || !bytes.Equal(p[offsetMAC:offsetMAC+addressLength], mac[:]) {
		return 0, l, errors.New("it is for another client")
	}
	options, err := parseOptions(p[offsetOptions:])
	if err != nil || len(options[optionKind]) != 1 {
		return 0, l, fmt.Errorf("its options are broken: %w", errors.Join(err, errors.New("it has no kind")))
	}
	if kind = options[optionKind][0]; kind != kindOffer && kind != kindACK {
		return kind, l, nil
	}
	l, err = leaseOf(p, options)
	return kind, l, err
}

// parseOptions returns the values of options by their numbers. One that comes twice goes on.
func parseOptions(p []byte) (map[byte][]byte, error) {
	options := map[byte][]byte{}
	for len(p) > 0 && p[0] != optionEnd {
		if p[0] == optionPad {
			p = p[1:]
			continue
		}
		if len(p) < 2 || len(p) < 2+int(p[1]) {
			return nil, errors.New("an option is cut off")
		}
		options[p[0]] = append(options[p[0]], p[2:2+int(p[1])]...)
		p = p[2+int(p[1]):]
	}
	return options, nil
}

const maxResolvers = 8

var domain = regexp.MustCompile(`^[a-zA-Z0-9_]([a-zA-Z0-9._-]{0,251}[a-zA-Z0-9])?$`)

func leaseOf(p []byte, options map[byte][]byte) (Lease, error) {
	address := netip.AddrFrom4([4]byte(p[offsetYourAddress : offsetYourAddress+4]))
	if address.IsUnspecified() || address.IsLoopback() || address.IsMulticast() || address == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return Lease{}, fmt.Errorf("it offers the address %s", address)
	}
	length, err := prefixLength(options[optionMask])
	if err != nil {
		return Lease{}, err
	}
	l := Lease{Address: netip.PrefixFrom(address, length), Duration: time.Hour}
	if routers := addresses(options[optionRouter]); len(routers) > 0 {
		l.Router = routers[0]
	}
	if servers := addresses(options[optionServer]); len(servers) > 0 {
		l.Server = servers[0]
	}
	l.Resolvers = addresses(options[optionResolvers])
	l.Resolvers = l.Resolvers[:min(len(l.Resolvers), maxResolvers)]
	if name := string(bytes.TrimRight(options[optionDomain], "\x00.")); domain.MatchString(name) {
		l.Search = []string{name}
	}
	if mtu := options[optionMTU]; len(mtu) == 2 {
		l.MTU = int(binary.BigEndian.Uint16(mtu))
	}
	if seconds := options[optionDuration]; len(seconds) == 4 {
		l.Duration = time.Duration(binary.BigEndian.Uint32(seconds)) * time.Second
	}
	return l, nil
}

// prefixLength returns how many bits a mask has. Without one the address is alone in its network.
func prefixLength(mask []byte) (int, error) {
	if len(mask) == 0 {
		return 32, nil
	}
	if len(mask) != 4 {
		return 0, fmt.Errorf("its mask has %d bytes, want 4", len(mask))
	}
	m := binary.BigEndian.Uint32(mask)
	length := bits.LeadingZeros32(^m)
	if m<<length != 0 {
		return 0, fmt.Errorf("its mask is %08x, want ones before zeros", m)
	}
	return length, nil
}

// addresses returns those of an option that a host can have.
func addresses(value []byte) (found []netip.Addr) {
	for ; len(value) >= 4; value = value[4:] {
		if a := netip.AddrFrom4([4]byte(value[:4])); !a.IsUnspecified() && !a.IsMulticast() {
			found = append(found, a)
		}
	}
	return found
}
