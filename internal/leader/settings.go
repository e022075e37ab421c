// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"fmt"
	"time"
)

// Spare is how long the guard must still be open when a call starts.
const Spare = 2 * time.Second

// jitter is JitterFactor of client-go's leader election, which has the same rule for the retry period.
const jitter = 1.2

// MaxLease is the longest Lease duration that may be set. maxTerm is the longest time that a
// replica waits for a holder: how long the claim of a holder with MaxLease lasts. A Lease with a
// longer duration was not written by Drover, and would block leadership indefinitely.
const (
	MaxLease = time.Hour
	maxTerm  = claimTerms * MaxLease
)

// Settings are the durations of an election.
type Settings struct {
	// Lease is how long standbys wait after the last renewal that they observed before they take over.
	Lease time.Duration
	// Renew is the renew deadline: how long a leader tries to renew before it gives up.
	Renew time.Duration
	// Retry is the retry period: the time from one try to the next.
	Retry time.Duration
}

// DefaultSettings returns the Lease duration and the retry period of Kubernetes' own controllers. The
// renew deadline is shorter than their 10 s, so that one request may take 3 s instead of 1 s.
func DefaultSettings() Settings {
	return Settings{Lease: 15 * time.Second, Renew: 6 * time.Second, Retry: 2 * time.Second}
}

// Margin is the time between the closing of the guard and the expiry of the Lease. It allows for the
// drift of clocks, which is proportional to the Lease duration.
func (s Settings) Margin() time.Duration { return s.Lease / 15 }

// RequestTimeout is how long one request may take so that two things hold. First, the leader gives up
// before another process may lead: retry period + renew deadline + two requests + margin are at most
// the Lease duration. Second, calls can start at any time while renewals succeed: between sending one
// renewal and receiving the answer to the next, there are a retry period and at most two requests.
func (s Settings) RequestTimeout() time.Duration {
	untilExpiry := s.Lease - s.Retry - s.Margin()
	return min(s.Renew, untilExpiry-s.Renew, untilExpiry-Spare) / 2
}

// minRequest is the shortest RequestTimeout within which an API server can answer.
const minRequest = 100 * time.Millisecond

// Validate returns an error that names the first rule that is violated, and the durations.
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
		return fmt.Errorf("the lease is %s: it must be a whole number of seconds, since a Lease cannot contain fractions", s.Lease)
	case s.Lease > MaxLease:
		return fmt.Errorf("the lease is %s: it must be at most %s", s.Lease, MaxLease)
	case s.Renew <= time.Duration(jitter*float64(s.Retry)):
		return fmt.Errorf("the renew deadline must be more than %v x the retry period: %s is not more than %v x %s", jitter, s.Renew, jitter, s.Retry)
	case s.RequestTimeout() < minRequest:
		return fmt.Errorf("retry period + margin + max(renew deadline, %s) + %s must be at most the lease: %s + %s + %s + %s is more than %s",
			Spare, 2*minRequest, s.Retry, s.Margin(), max(s.Renew, Spare), 2*minRequest, s.Lease)
	}
	return nil
}

// guardTerm returns how long a renewal keeps the guard open, counted from when the renewal was sent.
func (s Settings) guardTerm() time.Duration { return s.Lease - s.Margin() }
