// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"fmt"
	"time"
)

// Spare is the least validity that the guard must have left for a call to start.
const Spare = 2 * time.Second

// jitter is client-go's: a retry may come later by up to this factor.
const jitter = 1.2

// MaxLease is the longest Lease duration that may be set. maxTerm is the longest
// time that a holder is waited for: the term of a claim at MaxLease. An object with
// a longer duration was not written by Drover, and would block leadership
// indefinitely.
const (
	MaxLease = time.Hour
	maxTerm  = claimTerms * MaxLease
)

// Settings are the durations of an election.
type Settings struct {
	// Lease is how long standbys wait after the last renewal that they observed.
	Lease time.Duration
	// Renew is how long a leader tries to renew before it gives up.
	Renew time.Duration
	// Retry is the time from one try to the next.
	Retry time.Duration
}

// DefaultSettings returns the Lease and the retry period of Kubernetes' own controllers. The renew
// deadline is shorter than their 10 s, so that one request may take 3 s instead of 1 s.
func DefaultSettings() Settings {
	return Settings{Lease: 15 * time.Second, Renew: 6 * time.Second, Retry: 2 * time.Second}
}

// Margin is how long before the Lease expires the guard closes. It allows for clocks that drift,
// which they do in proportion to the Lease.
func (s Settings) Margin() time.Duration { return s.Lease / 15 }

// RequestTimeout is how long one request may take. The leader gives up before another process may
// lead: retry period + renew deadline + two requests + margin are at most the Lease. And calls can
// start at any time while renewals succeed: from the sending of one to the answer to the next are
// up to two requests.
func (s Settings) RequestTimeout() time.Duration {
	untilExpiry := s.Lease - s.Retry - s.Margin()
	return min(s.Renew, untilExpiry-s.Renew, untilExpiry-Spare) / 2
}

// minRequest is the shortest time for a request that an API server can keep to.
const minRequest = 100 * time.Millisecond

// Validate returns an error that names the rule that is broken, with its numbers.
func (s Settings) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"lease", s.Lease}, {"renew deadline", s.Renew}, {"retry period", s.Retry}} {
		if d.value <= 0 {
			return fmt.Errorf("the %s is %s: it must be more than 0", d.name, d.value)
		}
	}
	switch {
	case s.Lease%time.Second != 0:
		return fmt.Errorf("the lease is %s: it must be whole seconds, for a Lease holds no less", s.Lease)
	case s.Lease > MaxLease:
		return fmt.Errorf("the lease is %s: it must be at most %s", s.Lease, MaxLease)
	case s.Renew <= time.Duration(jitter*float64(s.Retry)):
		return fmt.Errorf("renew deadline > %v x retry period does not hold: %s is not more than %v x %s", jitter, s.Renew, jitter, s.Retry)
	case s.RequestTimeout() < minRequest:
		return fmt.Errorf("retry period + margin + the longer of renew deadline and %s + %s <= lease does not hold: %s + %s + %s + %s is more than %s",
			Spare, 2*minRequest, s.Retry, s.Margin(), max(s.Renew, Spare), 2*minRequest, s.Lease)
	}
	return nil
}

// guardTerm returns how long a renewal keeps the guard open, counted from its sending.
func (s Settings) guardTerm() time.Duration { return s.Lease - s.Margin() }
