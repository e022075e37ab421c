// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// NetworkConfig configures an edge for as long as it runs.
type NetworkConfig struct {
	// MAC is the guest's hardware address.
	MAC net.HardwareAddr `json:"mac"`
	// Address is the guest's address, with the prefix length of the network of all machines. The first address of that
	// network is the gateway's, which is the edge itself.
	Address netip.Prefix `json:"address"`
	// Hostname is the name of the guest, and Domain the domain in which it looks up short names.
	Hostname string `json:"hostname,omitempty"`
	Domain   string `json:"domain,omitempty"`
	// MTU is the MTU of the guest's interface, in bytes.
	MTU int `json:"mtu"`
	// Wanted is the configuration with which the edge begins, before it has the sockets of ports.
	Wanted Wanted `json:"wanted"`
}

// Gateway returns the address of the edge.
func (c NetworkConfig) Gateway() netip.Addr { return c.Address.Masked().Addr().Next() }

// Egress is where a guest may connect to, beside other machines, and how it learns of names there.
type Egress struct {
	// Deny closes everything but other machines.
	Deny bool `json:"deny,omitempty"`
	// Denied are ranges that are always closed, such as the addresses of a cluster's Services.
	Denied []netip.Prefix `json:"denied,omitempty"`
	// Resolvers answer for names of the outside.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
}

// Equal reports whether guests may connect to the same, and learn of names in the same way.
func (e Egress) Equal(other Egress) bool {
	return e.Deny == other.Deny && slices.Equal(e.Denied, other.Denied) && slices.Equal(e.Resolvers, other.Resolvers)
}

// IsWithin reports whether guests may connect to nothing that another egress closes.
func (e Egress) IsWithin(other Egress) bool {
	isOpen := func(p netip.Prefix) bool { return !slices.Contains(e.Denied, p) }
	return e.Deny || !other.Deny && !slices.ContainsFunc(other.Denied, isOpen)
}

// EdgeMemoryBytes is the most that the connections of one edge use, whatever the guest and those who connect to it do.
const EdgeMemoryBytes = 32 << 20

// Names of the network.
const (
	TCP = "tcp"
	UDP = "udp"
	// ICMP is for pings alone.
	ICMP = "icmp"
	// GuestMTU is the MTU of guests' interfaces, in bytes: that of Ethernet.
	GuestMTU = 1500
	// DNSPort is the port of resolvers.
	DNSPort = 53
	// InternalDomain is the domain of all machines: vm.namespace.drover.internal. Guests may leave it out.
	InternalDomain = "drover.internal"
)

// ReadResolvers returns the resolvers of this host or container, which resolv.conf(5) names, and the first domain in which
// it looks up short names. It fails if there is no resolver, as while a program rewrites the file.
func ReadResolvers() (resolvers []netip.AddrPort, domain string, err error) {
	content, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil, "", fmt.Errorf("finding the resolvers of names: %w", err)
	}
	return parseResolvers(string(content))
}

// ErrNoResolver means that a resolv.conf names no server that answers for names.
var ErrNoResolver = errors.New("/etc/resolv.conf does not name a nameserver with an IP address")

func parseResolvers(text string) (resolvers []netip.AddrPort, domain string, err error) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "search":
			domain = words[1]
		case words[0] == "nameserver":
			if address, err := netip.ParseAddr(words[1]); err == nil {
				resolvers = append(resolvers, netip.AddrPortFrom(address, DNSPort))
			}
		}
	}
	if len(resolvers) == 0 {
		return nil, domain, ErrNoResolver
	}
	return resolvers, domain, nil
}
