// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// configureNetwork gives the node its address, and routes to the pods of other nodes.
func (n *node) configureNetwork() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("link of the node: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(n.plan.NodeIP(n.index) + "/24")
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.AddrAdd(link, address),
		netlink.LinkSetUp(link), netlink.LinkSetUp(loopback),
		// Programs need a default route for the addresses of Services.
		netlink.RouteReplace(&netlink.Route{Gw: net.ParseIP(n.plan.ControlPlaneIP())}),
		AddPodRoutes(n.plan, n.index),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
		LimitOrphanRetries(),
	)
}

// LimitOrphanRetries limits how long the kernel retries on connections of ended processes. By
// default these connections keep an unused network namespace alive for minutes.
func LimitOrphanRetries() error {
	return os.WriteFile("/proc/sys/net/ipv4/tcp_orphan_retries", []byte("1"), 0o644)
}

// AddPodRoutes adds routes to the pods of all nodes except one.
func AddPodRoutes(p plan.Plan, except int) error {
	for i := 1; i <= p.Nodes; i++ {
		if i == except {
			continue
		}
		_, pods, err := net.ParseCIDR(p.PodCIDR(i))
		if err != nil {
			return err
		}
		if err := netlink.RouteReplace(&netlink.Route{Dst: pods, Gw: net.ParseIP(p.NodeIP(i))}); err != nil {
			return fmt.Errorf("route to pods of %s: %w", plan.NodeName(i), err)
		}
	}
	return nil
}
