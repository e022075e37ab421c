// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestCheckFlat checks that growth in every round is reported, and growth only at first or only
// once is not.
func TestCheckFlat(t *testing.T) {
	const heap, descriptors = 10 << 20, 30
	for name, c := range map[string]struct {
		needs func(round int) needs
		want  string // name of the growing value
	}{
		"flat":                {func(n int) needs { return needs{60 << 20, heap, 100, descriptors + float64(n%3)} }, ""},
		"caches fill":         {func(n int) needs { return needs{60 << 20, heap + 2e6*float64(min(n, 5)), 100, descriptors} }, ""},
		"history fills":       {func(n int) needs { return needs{60 << 20, heap + 3e6*float64(min(n, 10)), 100, descriptors} }, ""},
		"one sample is high":  {func(n int) needs { return needs{60 << 20, heap, 100, descriptors + 50*float64(n/29)} }, ""},
		"memory leaks":        {func(n int) needs { return needs{60 << 20, heap + 200e3*float64(n), 100, descriptors} }, "heap"},
		"a descriptor leaks":  {func(n int) needs { return needs{60 << 20, heap, 100, descriptors + float64(n)} }, "descriptors"},
		"a goroutine leaks":   {func(n int) needs { return needs{60 << 20, heap, 100 + float64(n), descriptors} }, "goroutines"},
		"too short to see it": {func(n int) needs { return needs{60 << 20, heap, 100 * float64(n%7), descriptors} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var all []sample
			for n := range 30 { // in the last 20 the history is full
				pid := 1
				if strings.HasPrefix(name, "too short") {
					pid = n / 7
				}
				all = append(all, sample{pid: pid, done: n * historyFull / 10, needs: c.needs(n)})
			}
			broken, _ := checkFlat(all)
			switch {
			case c.want == "" && len(broken) > 0:
				t.Errorf("got %v, want nothing", broken)
			case c.want != "" && (len(broken) != 1 || !strings.Contains(broken[0].Text, c.want)):
				t.Errorf("got %v, want a violation about %s", broken, c.want)
			}
		})
	}
}

// TestNeedsOf checks that a missing metric is an error and not zero.
func TestNeedsOf(t *testing.T) {
	var page string
	for _, f := range fields {
		page += "# TYPE " + f.metric + " gauge\n" + f.metric + " 1.5e+07\n"
	}
	got, err := needsOf(framework.Metrics(page))
	want := (needs{15e6, 15e6, 15e6, 15e6})
	assert.True(t, err == nil && got == want, "got %v, %v, want %v", got, err, want)
	_, err = needsOf(framework.Metrics("go_goroutines 7\n"))
	assert.True(t, err != nil, "got no error for one metric of four")
}
