// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import "time"

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	slowBackoff  = 30 * time.Second
)

// Backoff returns the wait after the n-th failure in a row: 1 s, doubling to 5 min.
// If slow, as for exhausted resources, which seldom return at once, it is at least
// 30 s.
func Backoff(n int32, slow bool) time.Duration {
	d := firstBackoff
	for ; n > 1 && d < maxBackoff; n-- {
		d *= 2
	}
	if slow {
		d = max(d, slowBackoff)
	}
	return min(d, maxBackoff)
}
