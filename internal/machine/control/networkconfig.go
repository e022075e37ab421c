// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

// NetworkConfig configures an edge for as long as it runs.
type NetworkConfig struct {
	// MAC is the guest's hardware address.
	MAC net.HardwareAddr `json:"mac"`
	// Address is the guest's address, with the prefix length of the network of all machines. The first address of that
	// network is the gateway's, which is the edge itself.
	Address netip.Prefix `json:"address"`
	// Hostname is what the guest is called, and Domain the domain in which it looks up short names.
	Hostname string `json:"hostname,omitempty"`
	Domain   string `json:"domain,omitempty"`
	// MTU is the MTU of the guest's interface, in bytes.
	MTU int `json:"mtu"`
	// Resolvers answer for names of the outside.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	Policy    EgressPolicy     `json:"policy"`
}

// Gateway returns the address of the edge.
func (c NetworkConfig) Gateway() netip.Addr { return c.Address.Masked().Addr().Next() }

// EgressPolicy is where a guest may connect to, beside other machines.
type EgressPolicy struct {
	// DenyEgress closes everything but other machines.
	DenyEgress bool `json:"denyEgress,omitempty"`
	// Denied are ranges that are closed always, such as those of a cluster's Services.
	Denied []netip.Prefix `json:"denied,omitempty"`
}

// Names of the network.
const (
	TCP = "tcp"
	UDP = "udp"
	// GuestMTU is the MTU of guests' interfaces, in bytes: that of Ethernet.
	GuestMTU = 1500
	// DNSPort is the port of resolvers.
	DNSPort = 53
	// InternalDomain is the domain of all machines: vm.namespace.drover.internal. Guests may leave it out.
	InternalDomain = "drover.internal"
)

// ReadResolvers returns the resolvers of this host or container, which resolv.conf(5) names.
func ReadResolvers() ([]netip.AddrPort, error) {
	content, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("finding the resolvers of names: %w", err)
	}
	var all []netip.AddrPort
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if address, err := netip.ParseAddr(words[1]); err == nil {
			all = append(all, netip.AddrPortFrom(address, DNSPort))
		}
	}
	return all, nil
}
