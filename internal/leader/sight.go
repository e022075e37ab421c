// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"fmt"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// observedLease is what a replica knows of the Lease.
type observedLease struct {
	known bool
	// version is the resourceVersion of the newest that was seen.
	version uint64
	// lease is nil where there is none.
	lease *coordinationv1.Lease
	// changed is when the spec was last seen to have changed.
	changed time.Duration
	// led is when a holder was last seen to renew, and ledTerm how long its Lease
	// lasted; 0 where none was.
	led, ledTerm time.Duration
	// mourned is until when the holder of a Lease that was deleted may act.
	mourned time.Duration
}

// see takes what a watch or an answer showed. What is not newer is left alone.
func (s *observedLease) see(lease *coordinationv1.Lease, version uint64, now time.Duration, usual time.Duration) bool {
	if s.known && version <= s.version {
		return false
	}
	s.take(lease, version, now, usual)
	return true
}

// seeLive takes the answer of a live read that was sent when asked was the
// newest version. Such an answer counts even if its version is lower, as it is
// after a cluster was restored from a backup, unless something else was seen
// while it was under way.
func (s *observedLease) seeLive(lease *coordinationv1.Lease, version, asked uint64, now time.Duration, usual time.Duration) bool {
	if s.known && s.version != asked && version <= s.version {
		return false
	}
	same := s.known && version == s.version && (lease == nil) == (s.lease == nil)
	if !same {
		s.take(lease, version, now, usual)
	}
	return !same
}

func (s *observedLease) take(lease *coordinationv1.Lease, version uint64, now time.Duration, usual time.Duration) {
	s.takeLead(lease, now)
	switch {
	case lease == nil && s.holder() != "":
		s.mourned = now + s.term(usual) // it may have been renewed unseen
	case lease != nil && (s.lease == nil || lease.UID != s.lease.UID || !equality.Semantic.DeepEqual(lease.Spec, s.lease.Spec)):
		s.changed = now
	}
	s.known, s.lease, s.version = true, lease, version
}

// takeLead takes note of a holder at work, by its renewal. Who takes or releases a
// Lease may have renewed nothing: the one follows on another leader, and the other
// may have been suspended before.
func (s *observedLease) takeLead(lease *coordinationv1.Lease, now time.Duration) {
	if s.holder() == "" || s.holder() != holderOf(lease) || lease.UID != s.lease.UID {
		return
	}
	before, after := s.lease.Spec, lease.Spec
	if after.AcquireTime.Equal(before.AcquireTime) && !after.RenewTime.Equal(before.RenewTime) && after.LeaseDurationSeconds != nil {
		s.led, s.ledTerm = now, time.Duration(*after.LeaseDurationSeconds)*time.Second
	}
}

func (s *observedLease) holder() string { return holderOf(s.lease) }

func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// term is for how long the holder may count on the Lease: as long as it asked
// for, and no less than usual, since somebody may have shortened it by hand. What is
// beyond all bounds is not believed.
func (s *observedLease) term(usual time.Duration) time.Duration {
	if s.lease == nil || s.lease.Spec.LeaseDurationSeconds == nil {
		return usual
	}
	return min(max(usual, time.Duration(*s.lease.Spec.LeaseDurationSeconds)*time.Second), maxTerm)
}

func (s *observedLease) transitions() int32 {
	if s.lease == nil || s.lease.Spec.LeaseTransitions == nil {
		return 0
	}
	return *s.lease.Spec.LeaseTransitions
}

// freeAt is when the Lease can be taken by somebody who is not its holder, 0
// for at once.
func (s *observedLease) freeAt(usual time.Duration) time.Duration {
	if s.holder() == "" {
		return s.mourned
	}
	return max(s.mourned, s.changed+s.term(usual))
}

func versionOf(lease *coordinationv1.Lease) (uint64, error) {
	return parseVersion(lease.ResourceVersion)
}

func parseVersion(text string) (uint64, error) {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the API server's resourceVersion %q is not a number: %w", text, err)
	}
	return version, nil
}
