// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"bytes"
	"slices"
	"testing"

	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/test/assert"
)

// changes are changes of a policy, which the page has to show.
var changes = map[string]func(*confine.Confined){
	"a program":       func(c *confine.Confined) { c.Execute = append(slices.Clone(c.Execute), "/bin/sh") },
	"a file":          func(c *confine.Confined) { c.Read = append(slices.Clone(c.Read), "/etc/passwd") },
	"a device":        func(c *confine.Confined) { c.Devices = append(slices.Clone(c.Devices), "/dev/mem") },
	"connections":     func(c *confine.Confined) { c.MayConnect = !c.MayConnect },
	"pairs":           func(c *confine.Confined) { c.MayPair = !c.MayPair },
	"signals":         func(c *confine.Confined) { c.MaySignal = !c.MaySignal },
	"further filters": func(c *confine.Confined) { c.StartsNothing = !c.StartsNothing },
}

// TestPageShowsPolicies checks that the page shows every change of a policy, so that make verify finds docs/rights.md
// out of date.
func TestPageShowsPolicies(t *testing.T) {
	before, err := Page(t.Context())
	assert.NoError(t, err)
	for i, p := range programs {
		for name, change := range changes {
			change(&programs[i].Confined)
			page, err := Page(t.Context())
			programs[i] = p
			assert.NoError(t, err)
			assert.True(t, !bytes.Equal(page, before), "%s of the %s: the page stays the same", name, p.name)
		}
	}
}
