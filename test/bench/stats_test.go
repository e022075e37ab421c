// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"time"
)

// newSample returns 1 ms, 2 ms ... n ms, not in order.
func newSample(n int) Sample {
	var s Sample
	for i := range n {
		s = append(s, time.Duration((i*7)%n+1)*time.Millisecond)
	}
	return s
}

func TestSummary(t *testing.T) {
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	tests := map[string]struct {
		sample Sample
		want   Summary
	}{
		"nothing":  {nil, Summary{}},
		"one":      {newSample(1), Summary{1, ms(1), ms(1), ms(1), ms(1)}},
		"twenty":   {newSample(20), Summary{20, ms(1), ms(10.5), ms(20), ms(20)}},
		"hundred":  {newSample(100), Summary{100, ms(1), ms(50.5), ms(99), ms(100)}},
		"thousand": {newSample(1000), Summary{1000, ms(1), ms(500.5), ms(990), ms(1000)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.sample.Summary(); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// TestDifference checks that a shift far beyond the spread is detected, and that
// none is reported without one.
func TestDifference(t *testing.T) {
	base, shifted := newSample(20), newSample(20)
	for n := range shifted {
		shifted[n] += 50 * time.Millisecond
	}
	if d, noise := Difference(base, shifted); d != 50*time.Millisecond || d <= noise {
		t.Errorf("50 ms more: difference %s, noise %s", d, noise)
	}
	if d, noise := Difference(base, newSample(20)); d != 0 || noise <= 0 {
		t.Errorf("the same: difference %s, noise %s", d, noise)
	}
}

func TestTable(t *testing.T) {
	table := NewTable("what", "how long")
	table.Row("a", FormatDuration(1234567*time.Nanosecond))
	table.Row("longer", FormatDuration(1234*time.Millisecond))
	table.Row("nothing")
	want := "" +
		"| what    | how long |\n" +
		"| ---     | ---      |\n" +
		"| a       | 1.2 ms   |\n" +
		"| longer  | 1234 ms  |\n" +
		"| nothing |          |\n"
	if got := table.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
