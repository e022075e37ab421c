// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"os"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestBypassProxy checks that the API server is added once to the hosts that the user connects to directly.
func TestBypassProxy(t *testing.T) {
	for name, c := range map[string]struct{ upper, lower, address, want string }{
		"nothing yet":        {"", "", "https://192.0.2.1:6443", "192.0.2.1:6443"},
		"others":             {"a.example,10.0.0.0/8", "", "https://192.0.2.1:6443", "a.example,10.0.0.0/8,192.0.2.1:6443"},
		"others, lower case": {"", "a.example", "https://192.0.2.1:6443", "a.example,192.0.2.1:6443"},
		"upper case counts":  {"a.example", "b.example", "https://192.0.2.1:6443", "a.example,192.0.2.1:6443"},
		"it is there":        {"192.0.2.1:6443,a.example", "", "https://192.0.2.1:6443", "192.0.2.1:6443,a.example"},
		"IPv6":               {"", "", "https://[2001:db8::1]:6443", "[2001:db8::1]:6443"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_PROXY", c.upper)
			t.Setenv("no_proxy", c.lower)
			assert.NoError(t, BypassProxy(c.address))
			assert.Equal(t, "NO_PROXY", os.Getenv("NO_PROXY"), c.want)
		})
	}
	assert.ErrorSays(t, "of no address", BypassProxy("here"), `"here" of the API server does not name a host`)
}
