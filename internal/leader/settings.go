// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"errors"
	"fmt"
	"time"
)

// Spare is how long the guard must last at least for a call to start.
const Spare = 2 * time.Second

// jitter is client-go's: retries are up to that much later.
const jitter = 1.2

// MaxLease is the longest Lease that may be set, and maxTerm the longest that anybody
// is waited for: what a claim of the longest Lease lasts. A longer duration in an
// object is no Drover's, and would keep everybody from leading without end.
const (
	MaxLease = time.Hour
	maxTerm  = claimTerms * MaxLease
)

// Settings are the times of an election.
type Settings struct {
	// Lease is how long the others wait after the last renewal that they saw.
	Lease time.Duration
	// Renew is how long a leader tries to renew before it gives up.
	Renew time.Duration
	// Retry is the time from one try to the next.
	Retry time.Duration
	// Request is how long one request may take.
	Request time.Duration
	// Margin is what the guard ends before the Lease does.
	Margin time.Duration
}

// DefaultSettings are those of Kubernetes' own controllers, with the rest to
// fit.
func DefaultSettings() Settings {
	return Settings{
		Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second,
		Request: time.Second, Margin: time.Second,
	}
}

// Validate names the rule that is broken, with its numbers.
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
	return errors.Join(s.leaderGivesUpFirst(), s.guardStaysOpen())
}

// leaderGivesUpFirst : whoever leads has given up before anybody else may lead.
func (s Settings) leaderGivesUpFirst() error {
	sum := s.Retry + s.Renew + 2*s.Request + s.Margin
	if sum <= s.Lease {
		return nil
	}
	return fmt.Errorf("retry period + renew deadline + 2 x request timeout + margin <= lease does not hold: %s + %s + 2 x %s + %s = %s is more than %s",
		s.Retry, s.Renew, s.Request, s.Margin, sum, s.Lease)
}

// guardStaysOpen : while renewals succeed, calls can start at any time. From the
// sending of one renewal to the answer of the next there are up to two requests.
func (s Settings) guardStaysOpen() error {
	sum := s.Retry + 2*s.Request + s.Margin + Spare
	if sum <= s.Lease {
		return nil
	}
	return fmt.Errorf("retry period + 2 x request timeout + margin + %s <= lease does not hold: %s + 2 x %s + %s + %s = %s is more than %s",
		Spare, s.Retry, s.Request, s.Margin, Spare, sum, s.Lease)
}

// term is how long a renewal lets the guard be open, from its sending.
func (s Settings) term() time.Duration { return s.Lease - s.Margin }
