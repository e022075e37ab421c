// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"syscall"
	"time"
)

// Aims.
const (
	gracefulAim    = 250 * time.Millisecond // p99, from the release
	crashAllowance = time.Second            // the most, on top of the Lease
)

// figure is one thing that is measured in a handover.
type figure struct {
	sig  syscall.Signal
	what string
	// of returns false where the handover has no such time.
	of func(h handover) (time.Duration, bool)
	// aim is the most that the percentile may be; 0 is no aim.
	aim        time.Duration
	percentile float64
}

func newFigures(lease time.Duration) []figure {
	inGap := func(from func(handover) time.Duration) func(handover) (time.Duration, bool) {
		return func(h handover) (time.Duration, bool) { return h.Reconciled - from(h), h.InGap }
	}
	released := func(h handover) bool { return h.Released > 0 }
	signalled := func(handover) time.Duration { return 0 }
	elected := func(h handover) time.Duration { return h.Elected }
	return []figure{
		{sig: syscall.SIGTERM, what: "signal to release", of: func(h handover) (time.Duration, bool) { return h.Released, released(h) }},
		{
			sig: syscall.SIGTERM, what: "release to new leader", aim: gracefulAim, percentile: 99,
			of: func(h handover) (time.Duration, bool) { return h.Elected - h.Released, released(h) },
		},
		{sig: syscall.SIGTERM, what: "signal to new leader", of: func(h handover) (time.Duration, bool) { return h.Elected, true }},
		{sig: syscall.SIGTERM, what: "new leader to first reconcile", of: inGap(elected)},
		{sig: syscall.SIGTERM, what: "signal to first reconcile", of: inGap(signalled)},
		{sig: syscall.SIGKILL, what: "last renewal to new leader", of: func(h handover) (time.Duration, bool) { return h.Elected - h.Renewed, true }},
		{
			sig: syscall.SIGKILL, what: "kill to new leader", aim: lease + crashAllowance, percentile: 100,
			of: func(h handover) (time.Duration, bool) { return h.Elected, true },
		},
		{sig: syscall.SIGKILL, what: "new leader to first reconcile", of: inGap(elected)},
		{sig: syscall.SIGKILL, what: "kill to first reconcile", of: inGap(signalled)},
	}
}
