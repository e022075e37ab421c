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

// Poll calls check until it succeeds, and returns check's last error if that takes too long.
// Use assert.Eventually or assert.Poll instead.
func Poll(within time.Duration, check func() error) (took time.Duration, err error) {
	for begin := time.Now(); ; time.Sleep(pollPeriod) {
		err = check()
		if took = time.Since(begin); err == nil || took > within {
			return took, err
		}
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
