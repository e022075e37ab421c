// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestKernelRoutes checks that no address of this host counts as another host.
func TestKernelRoutes(t *testing.T) {
	t.Parallel()
	routes, err := Open()
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, routes.Close()) })
	own := []string{"127.0.0.1", "127.8.9.10", "255.255.255.255", "224.0.0.1"}
	interfaces, err := net.InterfaceAddrs()
	assert.NoError(t, err)
	for _, a := range interfaces {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil {
			own = append(own, ip.String())
		}
	}
	for _, address := range own {
		assert.True(t, routes.CheckUnicast(netip.MustParseAddr(address)) != nil, "%s counts as another host", address)
	}
	text, err := os.ReadFile("/proc/net/route")
	assert.NoError(t, err)
	if strings.Contains(string(text), "\t00000000\t") { // a default route
		assert.NoError(t, routes.CheckUnicast(netip.MustParseAddr("198.51.100.7")))
	}
}
