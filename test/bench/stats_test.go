// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// newRuns returns the numbers 1 to n, unordered.
func newRuns(n int) (runs []float64) {
	for i := range n {
		runs = append(runs, float64((i*7)%n+1))
	}
	return runs
}

func TestPercentiles(t *testing.T) {
	for n, want := range map[int][4]float64{0: {}, 1: {1, 1, 1, 1}, 20: {1, 10.5, 20, 20}, 100: {1, 50.5, 99, 100}, 1000: {1, 500.5, 990, 1000}} {
		runs := newRuns(n)
		got := [4]float64{Percentile(runs, 0), Median(runs), Percentile(runs, 99), Percentile(runs, 100)}
		assert.True(t, got == want, "the minimum, median, p99 and maximum of %d are %v, want %v", n, got, want)
	}
}

// TestDifference checks that a shift far beyond the spread is detected, and that equal runs have
// difference 0.
func TestDifference(t *testing.T) {
	base, shifted := newRuns(20), newRuns(20)
	for n := range shifted {
		shifted[n] += 50
	}
	if d, noise := Difference(base, shifted); d != 50 || d <= noise {
		t.Errorf("50 more: difference %g, noise %g", d, noise)
	}
	if d, noise := Difference(base, newRuns(20)); d != 0 || noise <= 0 {
		t.Errorf("the same: difference %g, noise %g", d, noise)
	}
}

// TestReport checks that a report has the measured values, and says whether aims are met.
func TestReport(t *testing.T) {
	r := NewReport()
	r.AddRow("create", 10, "ms", 30, 10, 20).CompareWith("noop", 10, 10, 10).RatioAtMost(1.5)
	r.AddRow("writes at rest", 10, "a minute", 0).AtMost(0)
	want := "" +
		"| what           | VMs | Drover        | unit     | beside | takes         | ratio      | aim                   |\n" +
		"| ---            | --- | ---           | ---      | ---    | ---           | ---        | ---                   |\n" +
		"| create         | 10  | 20 (10 to 30) | ms       | noop   | 10 (10 to 10) | 2 (1 to 3) | at most 1.5 x: missed |\n" +
		"| writes at rest | 10  | 0             | a minute |        |               |            | at most 0: met        |\n"
	got := r.String()
	assert.True(t, strings.HasSuffix(got, want), "got\n%swant\n%s", got, want)
}
