// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"slices"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestParseEgress checks the flags of the network, and that what is wrong is named.
func TestParseEgress(t *testing.T) {
	t.Parallel()
	e, err := Options{Egress: EgressDeny, EgressDenied: []string{"10.96.7.7/12"}, Resolvers: []string{"192.0.2.53", "[2001:db8::53]:5353"}}.parseEgress()
	assert.NoError(t, err)
	if !e.Deny || len(e.Denied) != 1 || e.Denied[0].String() != "10.96.0.0/12" || len(e.Resolvers) != 2 || e.Resolvers[0].String() != "192.0.2.53:53" || e.Resolvers[1].String() != "[2001:db8::53]:5353" {
		t.Errorf("the flags are %+v", e)
	}
	for name, c := range map[string]struct {
		options Options
		says    string
	}{
		"another egress":     {Options{Egress: "no"}, `--qemu-egress is "no": it must be allow or deny`},
		"a range of IPv6":    {Options{EgressDenied: []string{"2001:db8::/32"}}, `--qemu-egress-denied has "2001:db8::/32": each must be an IPv4 range`},
		"too many ranges":    {Options{EgressDenied: slices.Repeat([]string{"10.0.0.0/8"}, 1001)}, "has 1001 ranges: it may have 1000"},
		"a name":             {Options{Resolvers: []string{"dns.example"}}, `--qemu-resolvers has "dns.example": each must be an IP address`},
		"no port":            {Options{Resolvers: []string{"192.0.2.53:0"}}, `--qemu-resolvers has "192.0.2.53:0"`},
		"too many resolvers": {Options{Resolvers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}}, "--qemu-resolvers has 4 addresses: it may have 3"},
	} {
		_, err := c.options.parseEgress()
		assert.ErrorSays(t, name, err, c.says)
	}
}
