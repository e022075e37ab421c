// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"testing"
	"time"
)

// pollPeriod is the time from one look to the next.
const pollPeriod = 25 * time.Millisecond

// Eventually looks until check is content, and fails the test with what check
// said last if that takes too long. It returns how long it took.
func Eventually(t testing.TB, within time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	took, err := Poll(within, check)
	if err != nil {
		t.Fatalf("not within %s: %s: %v", within, what, err)
	}
	return took
}

// Poll looks until check is content, and returns what it said last if that
// takes too long.
func Poll(within time.Duration, check func() error) (took time.Duration, err error) {
	for begin := time.Now(); ; time.Sleep(pollPeriod) {
		if err = check(); err == nil {
			return time.Since(begin), nil
		}
		if time.Since(begin) > within {
			return time.Since(begin), err
		}
	}
}

// Always looks for a while, once every period, and fails the test as soon as
// check is not content. It is for what must not happen; what must happen is for
// Eventually.
func Always(t testing.TB, during, period time.Duration, what string, check func() error) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(period) {
		if err := check(); err != nil {
			t.Fatalf("after %s: %s: %v", time.Since(begin).Round(time.Millisecond), what, err)
		}
		if time.Since(begin) >= during {
			return
		}
	}
}
