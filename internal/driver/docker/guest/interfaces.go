// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"net/netip"

	"github.com/moby/moby/api/types/network"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/guest/report"
)

// Interfaces implements driver.InterfaceLister. An interface has the name of its network, since
// the engine does not report its name in the container.
func (a *Access) Interfaces(ctx context.Context, uid types.UID) ([]report.Interface, error) {
	c, err := a.findContainer(ctx, uid)
	if err != nil {
		return nil, err
	}
	if !c.hasProcess() {
		return nil, c.checkRunning()
	}
	var all []report.Interface
	names, networks := c.sortedNetworks()
	for _, name := range names {
		n := networks[name]
		all = append(all, report.Interface{Name: name, MAC: n.MacAddress.String(), Addresses: prefixesOf(n)})
	}
	return all, nil
}

func prefixesOf(n *network.EndpointSettings) (all []netip.Prefix) {
	if n.IPAddress.IsValid() {
		all = append(all, netip.PrefixFrom(n.IPAddress, n.IPPrefixLen))
	}
	if n.GlobalIPv6Address.IsValid() {
		all = append(all, netip.PrefixFrom(n.GlobalIPv6Address, n.GlobalIPv6PrefixLen))
	}
	return all
}
