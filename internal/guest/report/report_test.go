// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"net/netip"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/guest/report"
)

// TestOddInterfaces checks that no interface is taken which no guest has.
func TestOddInterfaces(t *testing.T) {
	t.Parallel()
	for name, i := range map[string]report.Interface{
		"without a name": {}, "a long name": {Name: strings.Repeat("x", report.MaxName+1)}, "escape": {Name: "\x1b]0;x\a"}, "right to left": {Name: "a\u202eb"}, "no UTF-8": {Name: "a\xc3"},
		"a MAC": {Name: "x", MAC: "\x1b[2J"}, "another form of it": {Name: "x", MAC: "52-54-00-12-34-56"}, "no address": {Name: "x", Addresses: []netip.Prefix{{}}},
	} {
		if i.IsValid() {
			t.Errorf("%s: it is taken", name)
		}
	}
	if i := (report.Interface{Name: "以太网", MAC: "52:54:00:12:34:56", Addresses: []netip.Prefix{netip.MustParsePrefix("fe80::1/64")}}); !i.IsValid() {
		t.Errorf("%+v is refused", i)
	}
}
