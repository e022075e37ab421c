// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"slices"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

// TestStarts checks when a program is started that ends at once, that one which ran is restarted at once, that programs
// do not wait for each other, and that nothing is kept of those that are stable.
func TestStarts(t *testing.T) {
	t.Parallel()
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	s := NewStarts(clock)
	pass := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }
	var starts []int // in milliseconds
	const tick = 10 * time.Millisecond
	for at := time.Duration(0); at < 20*time.Second; at += tick {
		for range 3 {
			if err := s.Count("ends"); err == nil {
				starts = append(starts, int(at.Milliseconds()))
			} else {
				assert.ErrorIs(t, "a start too soon", err, ErrEndsSoon, "and is started again within 5s")
			}
		}
		pass(tick)
	}
	want := []int{0, 0, 100, 300, 700, 1500, 3100, 6300, 11300, 16300}
	assert.True(t, slices.Equal(starts, want), "it was started at %v ms, want %v", starts, want)
	assert.NoError(t, s.Count("another"))
	pass(MaxRestartWait + stableRun)
	for range 2 {
		assert.NoError(t, s.Count("ends"))
	}
	assert.ErrorIs(t, "the second restart", s.Count("ends"), ErrEndsSoon, "and is started again within 5s")
	for range 3 {
		pass(minRestartWait + stableRun)
		assert.NoError(t, s.Count("ends"))
	}
	assert.True(t, len(s.last) == 1, "it keeps %v", s.last)
}
