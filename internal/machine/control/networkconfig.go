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

// NetworkConfig is the configuration with which an edge starts. Only Wanted can change later.
type NetworkConfig struct {
	// MAC is the guest's hardware address.
	MAC net.HardwareAddr `json:"mac"`
	// Address is the guest's address, with the prefix length of the network of all machines. The edge is the gateway, and
	// has the first address of that network.
	Address netip.Prefix `json:"address"`
	// Hostname is the name of the guest. Domain is the search domain for short names.
	Hostname string `json:"hostname,omitempty"`
	Domain   string `json:"domain,omitempty"`
	// MTU is the MTU of the guest's interface, in bytes.
	MTU int `json:"mtu"`
	// Wanted is the first configuration. Its ports are served once Network.GiveSockets brings their sockets.
	Wanted Wanted `json:"wanted"`
}

// Gateway returns the address of the edge.
func (c NetworkConfig) Gateway() netip.Addr { return c.Address.Masked().Addr().Next() }

// Egress says where a guest may connect to, apart from other machines, and which resolvers it uses.
type Egress struct {
	// Deny denies all addresses except other machines.
	Deny bool `json:"deny,omitempty"`
	// Denied are ranges that are always denied, such as the addresses of a cluster's Services.
	Denied []netip.Prefix `json:"denied,omitempty"`
	// Resolvers answer queries for names outside of InternalDomain.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
}

// Equal reports whether e and other are the same.
func (e Egress) Equal(other Egress) bool {
	return e.Deny == other.Deny && slices.Equal(e.Denied, other.Denied) && slices.Equal(e.Resolvers, other.Resolvers)
}

// IsWithin reports whether e denies everything that other denies.
func (e Egress) IsWithin(other Egress) bool {
	isAllowed := func(p netip.Prefix) bool { return !slices.Contains(e.Denied, p) }
	return e.Deny || (!other.Deny && !slices.ContainsFunc(other.Denied, isAllowed))
}

// EdgeMemoryBytes bounds the memory of all connections of one edge. Neither the guest nor its clients can exceed it.
const EdgeMemoryBytes = 32 << 20

// Names and numbers of the network.
const (
	TCP = "tcp"
	UDP = "udp"
	// ICMP is only for pings.
	ICMP = "icmp"
	// GuestMTU is the MTU of guests' interfaces, in bytes, as in Ethernet.
	GuestMTU = 1500
	// DNSPort is the port of resolvers.
	DNSPort = 53
	// InternalDomain is the domain of machines, as in vm.namespace.drover.internal. Queries of guests may omit it.
	InternalDomain = "drover.internal"
)

// ReadResolvers returns the nameservers and the first search domain in resolv.conf(5) of this host or container. It fails
// with ErrNoResolver if there is none, such as while a program rewrites the file.
func ReadResolvers() (resolvers []netip.AddrPort, domain string, err error) {
	content, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil, "", fmt.Errorf("reading the nameservers of this host: %w", err)
	}
	return parseResolvers(string(content))
}

// ErrNoResolver means that resolv.conf does not name a usable nameserver.
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
