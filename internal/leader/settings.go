// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"errors"
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
	// Request is how long one request may take.
	Request time.Duration
	// Margin is how long before the Lease expires the guard closes.
	Margin time.Duration
}

// DefaultSettings returns the durations of Kubernetes' own controllers, and values
// for the rest that fit them.
func DefaultSettings() Settings {
	return Settings{
		Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second,
		Request: time.Second, Margin: time.Second,
	}
}

// Validate returns an error that names the rule that is broken, with its numbers.
func (s Settings) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"lease", s.Lease}, {"renew deadline", s.Renew}, {"retry period", s.Retry}, {"request timeout", s.Request}} {
		if d.value <= 0 {
			return fmt.Errorf("the %s is %s: it must be more than 0", d.name, d.value)
		}
	}
	if s.Margin < 0 {
		return fmt.Errorf("the margin is %s: it must not be negative", s.Margin)
	}
	if s.Lease%time.Second != 0 {
		return fmt.Errorf("the lease is %s: it must be whole seconds, for a Lease holds no less", s.Lease)
	}
	if s.Lease > MaxLease {
		return fmt.Errorf("the lease is %s: it must be at most %s", s.Lease, MaxLease)
	}
	if s.Renew <= time.Duration(jitter*float64(s.Retry)) {
		return fmt.Errorf("renew deadline > %v x retry period does not hold: %s is not more than %v x %s", jitter, s.Renew, jitter, s.Retry)
	}
	return errors.Join(s.checkLeaderGivesUpFirst(), s.checkGuardStaysOpen())
}

// checkLeaderGivesUpFirst checks that a leader gives up before another process may lead.
func (s Settings) checkLeaderGivesUpFirst() error {
	sum := s.Retry + s.Renew + 2*s.Request + s.Margin
	if sum <= s.Lease {
		return nil
	}
	return fmt.Errorf("retry period + renew deadline + 2 x request timeout + margin <= lease does not hold: %s + %s + 2 x %s + %s = %s is more than %s",
		s.Retry, s.Renew, s.Request, s.Margin, sum, s.Lease)
}

// checkGuardStaysOpen checks that calls can start at any time while renewals succeed.
// Between sending one renewal and the answer to the next there are up to two
// requests.
func (s Settings) checkGuardStaysOpen() error {
	sum := s.Retry + 2*s.Request + s.Margin + Spare
	if sum <= s.Lease {
		return nil
	}
	return fmt.Errorf("retry period + 2 x request timeout + margin + %s <= lease does not hold: %s + 2 x %s + %s + %s = %s is more than %s",
		Spare, s.Retry, s.Request, s.Margin, Spare, sum, s.Lease)
}

// guardTerm returns how long a renewal keeps the guard open, counted from its sending.
func (s Settings) guardTerm() time.Duration { return s.Lease - s.Margin }
