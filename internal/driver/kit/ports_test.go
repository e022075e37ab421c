// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"slices"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestUnpublishedPorts checks which declared ports are shown, and how: an image may declare anything.
func TestUnpublishedPorts(t *testing.T) {
	t.Parallel()
	published := []driver.Port{{Protocol: "TCP", Port: 80}, {Protocol: "udp", Port: 53}}
	var many []string
	for port := 65535; port > 0; port-- {
		many = append(many, fmt.Sprint(port))
	}
	for name, c := range map[string]struct{ declared, want []string }{
		"none":               {nil, nil},
		"published":          {[]string{"80/tcp", "80", "53/udp"}, nil},
		"another protocol":   {[]string{"80/udp", "53/tcp"}, []string{"53/tcp", "80/udp"}},
		"in order, and once": {[]string{"8443/TCP", "443", "443/tcp", "9/sctp"}, []string{"9/sctp", "443/tcp", "8443/tcp"}},
		"not a port":         {[]string{"", "/tcp", "0/tcp", "65536/tcp", "80-90/tcp", "-1", "8080/http", "1/tcp/udp", "\x1b[2J/tcp"}, nil},
	} {
		got := UnpublishedPorts(c.declared, published)
		assert.True(t, slices.Equal(got, c.want), "%s: the ports are %q, want %q", name, got, c.want)
	}
	got := UnpublishedPorts(many, nil)
	assert.True(t, len(got) == maxUnpublished && got[0] == "1/tcp" && got[31] == "32/tcp", "of many the ports are %q", got)
}
