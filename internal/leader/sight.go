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
	// version is the newest resourceVersion seen.
	version uint64
	// lease is nil if there is none.
	lease *coordinationv1.Lease
	// changed is when the spec was last seen to have changed.
	changed time.Duration
	// led is when a holder was last seen to renew, and ledTerm the duration of its
	// Lease. Both are 0 if none was seen.
	led, ledTerm time.Duration
	// mourned is until when the holder of a deleted Lease may still act.
	mourned time.Duration
}

// see records what a watch or an answer showed, unless it is not newer than what is
// known.
func (s *observedLease) see(lease *coordinationv1.Lease, version uint64, now time.Duration, usual time.Duration) bool {
	if s.known && version <= s.version {
		return false
	}
	s.take(lease, version, now, usual)
	return true
}

// seeLive records the answer of a live read. asked is the newest version known when
// the read was sent. The answer counts even if its version is lower, as after a
// cluster was restored from a backup. It does not count if something else was seen
// while the read was under way.
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

// takeLead records that a holder is active, as its renewal shows. Taking or releasing
// the Lease does not show that. A holder may take it directly after another leader
// without renewing anything, and one that releases may have been suspended before.
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

// term returns how long the holder may rely on the Lease. It is the duration that
// the holder wrote but at least usual, since that may have been shortened by hand.
// It is at most maxTerm.
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

// freeAt returns when a process that is not the holder can take the Lease, 0 for at
// once.
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
