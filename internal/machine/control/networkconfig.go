// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
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

// NetworkStatistics are the figures of a machine's network since its supervisor was started. The guest receives what
// the edge sends.
type NetworkStatistics struct {
	PacketsIn  int64 `json:"packetsIn"`
	BytesIn    int64 `json:"bytesIn"`
	PacketsOut int64 `json:"packetsOut"`
	BytesOut   int64 `json:"bytesOut"`
	// Dropped are packets with an address that the guest does not have, or broken ones.
	Dropped int64 `json:"dropped"`
	// Connections are open connections of TCP, and Flows open flows of UDP and of pings.
	Connections int64 `json:"connections"`
	Flows       int64 `json:"flows"`
	// Refused counts the connections, packets and names that were refused, and LastRefused has the last of them.
	Refused     int64     `json:"refused"`
	LastRefused []Refusal `json:"lastRefused,omitempty"`
}

// Refusal is a connection, packet or name that was refused to the guest.
type Refusal struct {
	// Protocol is a word such as tcp, udp or dns, and Target an address with a port, or a name.
	Protocol string `json:"protocol"`
	Target   string `json:"target"`
	// Reason is one of the words below, or one of a later version.
	Reason string `json:"reason"`
	// Count is how often it was asked for lately.
	Count int64     `json:"count"`
	Last  time.Time `json:"last"`
}

// Values of Refusal.Reason.
const (
	RefusedDenied    = "Denied"    // the operator has denied the range
	RefusedNoEgress  = "NoEgress"  // the operator allows other machines alone
	RefusedSpecial   = "Special"   // it is an address for special use
	RefusedNoRoute   = "NoRoute"   // the host lacks a route to another host there
	RefusedNoMachine = "NoMachine" // there is no machine that the guest may know
	RefusedTooMany   = "TooMany"   // the machine has too many connections
	RefusedNoAnswer  = "NoAnswer"  // there was no answer, or a refusal, from there
)

const (
	// MaxRefusals is how many refusals are remembered.
	MaxRefusals = 8
	// MaxTarget is how long the target of one is, in bytes.
	MaxTarget = 255
)

// IsOfTarget reports whether the target of a refusal may have a character.
func IsOfTarget(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".:-_[]?", r)
}

// refusalWord matches the protocol and the reason of a refusal.
var refusalWord = regexp.MustCompile(`^[A-Za-z]{1,32}$`)

func (r Refusal) isValid() bool {
	isOdd := func(r rune) bool { return !IsOfTarget(r) }
	return refusalWord.MatchString(r.Protocol) && refusalWord.MatchString(r.Reason) && len(r.Target) <= MaxTarget &&
		!strings.ContainsFunc(r.Target, isOdd) && r.Count > 0 && !r.Last.IsZero()
}

// isValid reports whether figures have only harmless text and no negative numbers.
func (n *NetworkStatistics) isValid() bool {
	figures := []int64{n.PacketsIn, n.BytesIn, n.PacketsOut, n.BytesOut, n.Dropped, n.Connections, n.Flows, n.Refused}
	return slices.Min(figures) >= 0 && len(n.LastRefused) <= MaxRefusals &&
		!slices.ContainsFunc(n.LastRefused, func(r Refusal) bool { return !r.isValid() })
}
