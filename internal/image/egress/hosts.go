// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Hosts are the hosts that may be contacted although their addresses are not public. The
// zero value is an empty list.
type Hosts struct {
	names    map[string]bool
	prefixes []netip.Prefix
	// interfaces returns the addresses of this host; nil means net.InterfaceAddrs.
	interfaces func() ([]net.Addr, error)
}

var hostName = regexp.MustCompile(`^[a-z0-9_]([-a-z0-9_.]*[a-z0-9_])?$`)

// ParseHosts parses a list of host names, addresses and CIDRs.
func ParseHosts(list []string) (Hosts, error) {
	h := Hosts{names: map[string]bool{}}
	for _, entry := range list {
		prefix, err := parsePrefix(entry)
		name := canonicalName(entry)
		switch {
		case err == nil && classOf(prefix.Addr()) == forbidden && prefix.Bits() > 0:
			return Hosts{}, fmt.Errorf("%q is not allowed: link-local, metadata, multicast and unspecified addresses are never contacted", entry)
		case err == nil:
			h.prefixes = append(h.prefixes, prefix)
		case hostName.MatchString(name):
			h.names[name] = true
		default:
			return Hosts{}, fmt.Errorf("%q is not allowed: each entry must be a host name, an IP address or a CIDR such as 10.0.0.0/8, without a port", entry)
		}
	}
	return h, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		prefix = netip.PrefixFrom(address, address.BitLen())
	}
	if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), nil
}

// canonicalName returns a host's name in lower case, without a dot at the end.
func canonicalName(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// checkAddress fails unless the host may be contacted at the dialled address.
func (h Hosts) checkAddress(host, dialled string) error {
	addressPort, err := netip.ParseAddrPort(dialled)
	if err != nil {
		return Errorf("%.100s resolves to an invalid address", host)
	}
	address := addressPort.Addr().WithZone("")
	class := classOf(address)
	switch {
	case class == forbidden:
		return Errorf("%.100s resolves to %s address, which is never contacted", host, class)
	case h.names[canonicalName(host)] || h.hasPrefixOf(address):
		return nil
	}
	own, err := h.isOwn(address)
	switch {
	case err != nil:
		return Errorf("%.100s may resolve to an address of Drover's host, which is contacted only if --image-hosts has it: the host's addresses cannot be listed", host)
	case own:
		class = loopback
	case class == public:
		return nil
	}
	return Errorf("%.100s resolves to %s address, which is contacted only if --image-hosts has the name or the address", host, class)
}

// isOwn reports whether an interface of this host has the given address, or an IPv4 address that is
// embedded in the given one. A service that listens there may be meant only for the host, as on loopback.
func (h Hosts) isOwn(address netip.Addr) (bool, error) {
	list := h.interfaces
	if list == nil {
		list = net.InterfaceAddrs
	}
	all, err := list()
	if err != nil {
		return false, err
	}
	for _, a := range all {
		own, err := netip.ParsePrefix(a.String())
		if err == nil && slices.Contains(addressForms(address), own.Addr().Unmap()) {
			return true, nil
		}
	}
	return false, nil
}

// hasPrefixOf reports whether an allowed CIDR contains the given address, or an IPv4 address that is
// embedded in the given one.
func (h Hosts) hasPrefixOf(address netip.Addr) bool {
	for _, form := range addressForms(address) {
		for _, p := range h.prefixes {
			if p.Contains(form) {
				return true
			}
		}
	}
	return false
}

// class is a kind of address, in words for errors.
type class string

// The classes, the strictest last.
const (
	public    class = "a public"
	private   class = "a private"
	loopback  class = "a loopback"
	forbidden class = "a link-local, metadata, multicast or unspecified"
)

var strictness = map[class]int{public: 0, private: 1, loopback: 2, forbidden: 3}

// classes lists the addresses that are not public.
var classes = []struct {
	prefix netip.Prefix
	class  class
}{
	{netip.MustParsePrefix("0.0.0.0/8"), forbidden}, // "this network", which Linux treats as the host itself
	{netip.MustParsePrefix("169.254.0.0/16"), forbidden},
	{netip.MustParsePrefix("168.63.129.16/32"), forbidden},  // metadata of Azure
	{netip.MustParsePrefix("fd00:ec2::254/128"), forbidden}, // metadata of AWS
	{netip.MustParsePrefix("224.0.0.0/4"), forbidden},
	{netip.MustParsePrefix("240.0.0.0/4"), forbidden}, // reserved, and broadcast
	{netip.MustParsePrefix("::/128"), forbidden},
	{netip.MustParsePrefix("fe80::/10"), forbidden},
	{netip.MustParsePrefix("ff00::/8"), forbidden},
	{netip.MustParsePrefix("127.0.0.0/8"), loopback},
	{netip.MustParsePrefix("::1/128"), loopback},
	{netip.MustParsePrefix("10.0.0.0/8"), private},
	{netip.MustParsePrefix("172.16.0.0/12"), private},
	{netip.MustParsePrefix("192.168.0.0/16"), private},
	{netip.MustParsePrefix("100.64.0.0/10"), private}, // shared by a provider's customers
	{netip.MustParsePrefix("192.0.0.0/24"), private},  // for protocols
	{netip.MustParsePrefix("198.18.0.0/15"), private}, // for benchmarks
	{netip.MustParsePrefix("fc00::/7"), private},
	{netip.MustParsePrefix("fec0::/10"), private},      // site-local, which fc00::/7 has replaced
	{netip.MustParsePrefix("64:ff9b:1::/48"), private}, // local-use NAT64
}

// classOf returns the strictest class among all forms of an address.
func classOf(address netip.Addr) class {
	found := public
	for _, form := range addressForms(address) {
		for _, c := range classes {
			if c.prefix.Contains(form) && strictness[c.class] > strictness[found] {
				found = c.class
			}
		}
	}
	return found
}

// embeddingPrefixes are the IPv6 networks whose addresses embed an IPv4 address, and the index
// of its first byte.
var embeddingPrefixes = []struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4
	{netip.MustParsePrefix("2001::/32"), 4},        // Teredo: the address of the Teredo server
}

// addressForms returns an address and the IPv4 addresses that are embedded in it.
func addressForms(address netip.Addr) []netip.Addr {
	address = address.Unmap()
	all := []netip.Addr{address}
	if !address.Is6() || address == netip.IPv6Loopback() || address.IsUnspecified() {
		return all
	}
	b := address.As16()
	for _, e := range embeddingPrefixes {
		if e.prefix.Contains(address) {
			all = append(all, netip.AddrFrom4([4]byte(b[e.offset:e.offset+net.IPv4len])))
		}
	}
	if teredo.Contains(address) {
		all = append(all, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	}
	return all
}

// teredo is the network of Teredo. The last bytes of its addresses are the client's IPv4 address
// with all bits inverted.
var teredo = netip.MustParsePrefix("2001::/32")
