// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
)

// conflictBackoff is for changes while a controller writes too: each of its writes may come
// in between, and the backoff of client-go gives up after the fourth.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1, Jitter: 1, Steps: 500}

// RetryOnConflict calls change, which reads and writes an object, until there is no conflict.
func RetryOnConflict(change func() error) (err error) {
	_ = retry.RetryOnConflict(conflictBackoff, func() error { // which drops errors of a context
		err = change()
		return err
	})
	return err
}

// Sleep waits, and ends early when ctx does.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
