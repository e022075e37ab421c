// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"cloudnative.tw/drover/test/cluster/internal/node"
	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// Names of interfaces in the cluster's network namespace.
const (
	// HostPeer is the cluster's end of the link to the host. The host makes the link.
	HostPeer = "host"
	bridge   = "br0"
)

// makeNetwork makes the bridge that connects the control plane, the nodes and the host. They
// lack routes to other networks.
func makeNetwork(p plan.Plan) error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge, Flags: net.FlagUp}}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	host, err := netlink.LinkByName(HostPeer)
	if err != nil {
		return fmt.Errorf("link to the host: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(p.ControlPlaneIP() + "/24")
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.AddrAdd(br, address),
		netlink.LinkSetMaster(host, br),
		netlink.LinkSetUp(host), netlink.LinkSetUp(loopback), netlink.LinkSetUp(br),
		node.AddPodRoutes(p, 0), // of all nodes: they are numbered from 1
		node.LimitOrphanRetries(),
	)
}

// linkNode adds an interface on the bridge to the network namespace of pid, the node's first
// process. Its hardware address is always the same.
func linkNode(p plan.Plan, i, pid int) error {
	name := plan.NodeName(i)
	if old, err := netlink.LinkByName(name); err == nil { // of a node that was switched off just now
		_ = netlink.LinkDel(old)
	}
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(p.NodeMAC(i))
	if err != nil {
		return err
	}
	link := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: br.Attrs().Index},
		PeerName:  "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsPid(pid),
	}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

// setLink cuts or restores a node's link.
func setLink(i int, up bool) error {
	link, err := netlink.LinkByName(plan.NodeName(i))
	if err != nil {
		return fmt.Errorf("link of %s: %w", plan.NodeName(i), err)
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}
