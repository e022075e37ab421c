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

// observedLease is the Lease as a replica knows it.
type observedLease struct {
	known bool
	// version is the newest resourceVersion observed.
	version uint64
	// lease is the Lease, nil if it does not exist.
	lease *coordinationv1.Lease
	// changedAt is when the spec was last observed to have changed.
	changedAt time.Duration
	// renewedAt is when a holder was last observed to renew, and renewedTerm the
	// duration of its Lease. Both are 0 if no renewal was observed.
	renewedAt, renewedTerm time.Duration
	// deletedUntil is until when the holder of a deleted Lease may still act.
	deletedUntil time.Duration
}

// updateIfNewer records a Lease from a watch or from an answer, if its version is newer
// than the known version.
func (s *observedLease) updateIfNewer(lease *coordinationv1.Lease, version uint64, now time.Duration, leaseDuration time.Duration) bool {
	if s.known && version <= s.version {
		return false
	}
	s.updateFrom(lease, version, now, leaseDuration)
	return true
}

// updateLive records the answer of a live read. before is the newest version that was known when the
// read was sent. The answer counts even if its version is lower, as after a cluster was restored from a
// backup. It does not count if a watch or another answer has shown a newer version since.
func (s *observedLease) updateLive(lease *coordinationv1.Lease, version, before uint64, now time.Duration, leaseDuration time.Duration) bool {
	if s.known && s.version != before && version <= s.version {
		return false
	}
	same := s.known && version == s.version && (lease == nil) == (s.lease == nil)
	if !same {
		s.updateFrom(lease, version, now, leaseDuration)
	}
	return !same
}

func (s *observedLease) updateFrom(lease *coordinationv1.Lease, version uint64, now time.Duration, leaseDuration time.Duration) {
	s.updateRenewal(lease, now)
	switch {
	case lease == nil && s.holder() != "":
		s.deletedUntil = now + s.holderTerm(leaseDuration) // the holder may have renewed the Lease just before
	case lease != nil && (s.lease == nil || lease.UID != s.lease.UID || !equality.Semantic.DeepEqual(lease.Spec, s.lease.Spec)):
		s.changedAt = now
	}
	s.known, s.lease, s.version = true, lease, version
}

// updateRenewal records that a holder is active, if lease shows a renewal. Acquiring or releasing the
// Lease does not show this: a holder may acquire the Lease directly after another leader without
// renewing the claim, and a holder that releases the Lease may have been suspended before.
func (s *observedLease) updateRenewal(lease *coordinationv1.Lease, now time.Duration) {
	if s.holder() == "" || s.holder() != holderOf(lease) || lease.UID != s.lease.UID {
		return
	}
	before, after := s.lease.Spec, lease.Spec
	if after.AcquireTime.Equal(before.AcquireTime) && !after.RenewTime.Equal(before.RenewTime) && after.LeaseDurationSeconds != nil {
		s.renewedAt, s.renewedTerm = now, time.Duration(*after.LeaseDurationSeconds)*time.Second
	}
}

func (s *observedLease) holder() string { return holderOf(s.lease) }

func holderOf(lease *coordinationv1.Lease) string {
	if lease == nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// holderTerm returns how long the holder may rely on the Lease after a renewal: the
// duration in the Lease, but at least leaseDuration, since someone may have shortened the
// duration by hand, and at most maxTerm.
func (s *observedLease) holderTerm(leaseDuration time.Duration) time.Duration {
	if s.lease == nil || s.lease.Spec.LeaseDurationSeconds == nil {
		return leaseDuration
	}
	return min(max(leaseDuration, time.Duration(*s.lease.Spec.LeaseDurationSeconds)*time.Second), maxTerm)
}

func (s *observedLease) transitions() int32 {
	if s.lease == nil || s.lease.Spec.LeaseTransitions == nil {
		return 0
	}
	return *s.lease.Spec.LeaseTransitions
}

// availableAt returns when a process that is not the holder can acquire the Lease, or 0
// if it can acquire the Lease at once.
func (s *observedLease) availableAt(leaseDuration time.Duration) time.Duration {
	if s.holder() == "" {
		return s.deletedUntil
	}
	return max(s.deletedUntil, s.changedAt+s.holderTerm(leaseDuration))
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
