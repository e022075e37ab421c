// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// places are the places of all lanes and the fetches that have one. The caller holds Tracker.mu.
type places struct {
	clock     clock.Clock
	perLane   int // how many places a lane has; 0 means any number
	all       []*Fetch
	rotatedAt time.Time // when a slow fetch last lost its place since its turn was over
}

// countFetches returns how many places a namespace has in a lane.
func (p *places) countFetches(l lane, namespace string) (n int) {
	for _, f := range p.all {
		if f.lane == l && f.namespace == namespace {
			n++
		}
	}
	return n
}

// isBelowShare reports whether a namespace has fewer places than it may have. No namespace takes all, so that fetches
// that never end delay only those of the same namespace.
func (p *places) isBelowShare(l lane, namespace string) bool {
	return p.perLane == 0 || p.countFetches(l, namespace) < max(p.perLane-1, 1)
}

// hasRoom reports whether a lane has a free place.
func (p *places) hasRoom(l lane) bool {
	taken := 0
	for _, f := range p.all {
		if f.lane == l {
			taken++
		}
	}
	return p.perLane == 0 || taken < p.perLane
}

// hasPlaceFor reports whether a namespace may have one more place in a lane, be it one that another loses to it.
func (p *places) hasPlaceFor(l lane, namespace string) bool {
	return p.isBelowShare(l, namespace) && (p.hasRoom(l) || p.findVictim(l, namespace) != nil)
}

// findVictim returns the slowest of the fetches that may lose their place in the slow lane to a namespace: those of
// namespaces that have at least two places more, and those whose turn is over if it has none.
func (p *places) findVictim(l lane, namespace string) (victim *Fetch) {
	if l != slow {
		return nil
	}
	now, own := p.clock.Now(), p.countFetches(l, namespace)
	mayRotate := own == 0 && now.Sub(p.rotatedAt) >= turns[l]
	rate := func(f *Fetch) float64 { return float64(f.received.Load()) / now.Sub(f.begunAt).Seconds() }
	for _, f := range p.all {
		isOver := mayRotate && now.Sub(f.placedAt) >= turns[l]<<f.losses
		mayLose := f.lane == l && (isOver || p.countFetches(l, f.namespace) > own+1)
		if mayLose && (victim == nil || rate(f) < rate(victim)) {
			victim = f
		}
	}
	return victim
}

// placeFetch moves a fetch to a place that its namespace may have.
func (p *places) placeFetch(f *Fetch, l lane, namespace string) {
	p.removeFetch(f)
	if !p.hasRoom(l) {
		victim := p.findVictim(l, namespace)
		if p.countFetches(l, victim.namespace) <= p.countFetches(l, namespace)+1 {
			p.rotatedAt = p.clock.Now()
		}
		p.displaceFetch(victim, l)
	}
	f.hasPlace, f.lane, f.namespace, f.placedAt = true, l, namespace, p.clock.Now()
	p.all = append(p.all, f)
}

// displaceFetch ends the run of a fetch, which waits for a place in a lane then.
func (p *places) displaceFetch(f *Fetch, next lane) {
	p.removeFetch(f)
	if f.lane == slow {
		f.losses++
	}
	f.lane = next
	f.cancel(errPlaceLost)
}

// removeFetch takes the place of a fetch, if it has one.
func (p *places) removeFetch(f *Fetch) {
	f.hasPlace = false
	p.all = slices.DeleteFunc(p.all, func(other *Fetch) bool { return other == f })
}
