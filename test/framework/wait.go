// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// pollPeriod is the time between checks of Poll.
const pollPeriod = 25 * time.Millisecond

// Eventually checks again after a tenth of the time that the wait has lasted, within
// these bounds. So a result is noticed at most a tenth late, and many tests that wait
// for a slow machine do not make it slower.
const (
	minPause = 10 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// Eventually calls check until it succeeds, and fails the test with check's last
// error if that takes too long. It returns how long it took.
func Eventually(t testing.TB, within time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	took, err := pollUntil(within, check, func(waited time.Duration) time.Duration {
		return min(max(waited/10, minPause), maxPause)
	})
	if err != nil {
		t.Fatalf("not within %s: %s: %v", within, what, err)
	}
	return took
}

// Poll calls check until it succeeds, and returns check's last error if that takes
// too long. Benchmarks use it to measure, so it checks as often at the end of a long
// wait as at its beginning.
func Poll(within time.Duration, check func() error) (took time.Duration, err error) {
	return pollUntil(within, check, func(time.Duration) time.Duration { return pollPeriod })
}

func pollUntil(within time.Duration, check func() error, pause func(waited time.Duration) time.Duration) (took time.Duration, err error) {
	for begin := time.Now(); ; {
		err = check()
		took = time.Since(begin)
		if err == nil || took > within {
			return took, err
		}
		time.Sleep(pause(took))
	}
}

// Consistently calls check for a while, once every period, and fails the test as soon as
// check fails. It is for what must not happen; for what must happen use Eventually.
func Consistently(t testing.TB, during, period time.Duration, what string, check func() error) {
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

// conflictBackoff is for changes while a controller writes too: each of its writes may come
// in between, and client-go's own backoff gives up after the fourth.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1, Jitter: 1, Steps: 500}

// RetryOnConflict calls change, which reads and writes an object, until there is no conflict.
func RetryOnConflict(change func() error) (err error) {
	_ = retry.RetryOnConflict(conflictBackoff, func() error { // which drops errors of a context
		err = change()
		return err
	})
	return err
}
