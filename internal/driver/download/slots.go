// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// slots records the fetches that have a slot, for all lanes. Its methods require Tracker.mu to be held.
type slots struct {
	clock     clock.Clock
	perLane   int // how many slots a lane has; 0 means any number
	all       []*Fetch
	rotatedAt time.Time // when a fetch last lost its slot in the slow lane because its turn was over
}

// countFetches returns how many slots of a lane a namespace has.
func (s *slots) countFetches(l lane, namespace string) (n int) {
	for _, f := range s.all {
		if f.lane == l && f.namespace == namespace {
			n++
		}
	}
	return n
}

// isBelowShare reports whether a namespace may have more slots of a lane. A namespace cannot have all of them, so that
// endless fetches delay only fetches of the same namespace.
func (s *slots) isBelowShare(l lane, namespace string) bool {
	return s.perLane == 0 || s.countFetches(l, namespace) < max(s.perLane-1, 1)
}

// hasFreeSlot reports whether a lane has a free slot.
func (s *slots) hasFreeSlot(l lane) bool {
	taken := 0
	for _, f := range s.all {
		if f.lane == l {
			taken++
		}
	}
	return s.perLane == 0 || taken < s.perLane
}

// hasSlotFor reports whether a namespace can have one more slot of a lane: a free one, or one that another fetch loses.
func (s *slots) hasSlotFor(l lane, namespace string) bool {
	return s.isBelowShare(l, namespace) && (s.hasFreeSlot(l) || s.findVictim(l, namespace) != nil)
}

// findVictim returns the slowest fetch that may lose its slot in the slow lane to a namespace, or nil. Fetches of
// namespaces that have at least two slots more may lose theirs and, if the namespace has none yet, fetches whose turn is
// over.
func (s *slots) findVictim(l lane, namespace string) (victim *Fetch) {
	if l != slow {
		return nil
	}
	now, count := s.clock.Now(), s.countFetches(l, namespace)
	mayRotate := count == 0 && now.Sub(s.rotatedAt) >= turns[l]
	rate := func(f *Fetch) float64 { return float64(f.received.Load()) / now.Sub(f.begunAt).Seconds() }
	for _, f := range s.all {
		isTurnOver := mayRotate && now.Sub(f.assignedAt) >= turns[l]<<f.losses
		mayLose := f.lane == l && (isTurnOver || s.countFetches(l, f.namespace) > count+1)
		if mayLose && (victim == nil || rate(f) < rate(victim)) {
			victim = f
		}
	}
	return victim
}

// assignSlot moves a fetch to a slot of a lane, after hasSlotFor has returned true. Another fetch may lose the slot.
func (s *slots) assignSlot(f *Fetch, l lane, namespace string) {
	s.removeFetch(f)
	if !s.hasFreeSlot(l) {
		victim := s.findVictim(l, namespace)
		if s.countFetches(l, victim.namespace) <= s.countFetches(l, namespace)+1 {
			s.rotatedAt = s.clock.Now()
		}
		s.revokeSlot(victim, l)
	}
	f.hasSlot, f.lane, f.namespace, f.assignedAt = true, l, namespace, s.clock.Now()
	s.all = append(s.all, f)
}

// revokeSlot ends the run of a fetch. The fetch then waits for a slot in the lane next.
func (s *slots) revokeSlot(f *Fetch, next lane) {
	s.removeFetch(f)
	if f.lane == slow {
		f.losses++
	}
	f.lane = next
	f.cancel(errSlotLost)
}

// removeFetch frees the slot of a fetch, if it has one.
func (s *slots) removeFetch(f *Fetch) {
	f.hasSlot = false
	s.all = slices.DeleteFunc(s.all, func(other *Fetch) bool { return other == f })
}
