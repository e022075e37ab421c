// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// route is a route of the host to other hosts.
type route struct {
	to netip.Prefix
	// device is the index of the route's interface, 0 for a route with several interfaces.
	device int
}

// viaInterface returns the part of a message that names the interface of a route.
func (r route) viaInterface() string {
	device, err := net.InterfaceByIndex(r.device)
	if err != nil {
		return ""
	}
	return " by " + device.Name
}

// halfDefault is the prefix length of the two routes that VPNs make in place of a default route.
const halfDefault = 1

// listRoutes lists the IPv4 routes of this host, of all routing tables, without default routes. It also leaves out
// routes that lead nowhere, such as blackholes, since there are no hosts behind them that guests could lose.
func listRoutes() ([]route, error) {
	answer, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("finding this host's routes: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return nil, fmt.Errorf("finding this host's routes: %w", err)
	}
	var routes []route
	for _, m := range messages {
		if !isRelevant(m) {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, fmt.Errorf("finding this host's routes: %w", err)
		}
		if r := routeOf(int(m.Data[1]), attributes); r.to.IsValid() {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// isRelevant reports whether a message has a route to hosts that is neither a default route nor a half of one.
func isRelevant(m syscall.NetlinkMessage) bool {
	if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg {
		return false
	}
	bits, kind := m.Data[1], m.Data[7] // rtm_dst_len and rtm_type
	return bits > halfDefault && (kind == syscall.RTN_UNICAST || kind == syscall.RTN_LOCAL)
}

// routeOf returns the route with a prefix length, and with the address and interface in the attributes.
func routeOf(bits int, attributes []syscall.NetlinkRouteAttr) (r route) {
	for _, a := range attributes {
		switch address, isIP := netip.AddrFromSlice(a.Value); {
		case a.Attr.Type == syscall.RTA_DST && isIP:
			r.to = netip.PrefixFrom(address, bits)
		case a.Attr.Type == syscall.RTA_OIF && len(a.Value) == 4:
			r.device = int(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return r
}
