// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"
)

// lane is a kind of fetch. Each kind has separate places, so that long fetches delay only other long ones.
type lane int

// The lanes. A fetch begins in the first one, and moves on with the bytes that it has received.
const (
	quick lane = iota
	// large is for contents of largeFrom bytes or more, or of unknown size.
	large
	// slow is for fetches that have lost their place in another lane.
	slow
	laneCount
)

const (
	// DefaultConcurrency is how many places a driver has in each lane.
	DefaultConcurrency = 4

	// largeFrom is from how many bytes on a content is large.
	largeFrom = 64 << 20
	// reviewInterval is how often it is checked whether a fetch may keep its place: it has to receive
	// leastRate bytes a second in that time.
	reviewInterval = 10 * time.Second
	leastRate      = 256 << 10
	// longestRun limits for how long a fetch has an unfinished file on the disk.
	longestRun = 24 * time.Hour
)

// turns are for how long a fetch may keep its place, however fast it is. A place in the last lane is lost only to a
// namespace that has none, and only one in each turn. A fetch that has lost one keeps the next for twice as long: what
// takes less than longestRun arrives, whatever others do.
var turns = [laneCount]time.Duration{quick: time.Minute, large: 10 * time.Minute, slow: 15 * time.Minute}

// reviewFetch checks whether a fetch may keep its place.
func (t *Tracker) reviewFetch(f *Fetch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.admitWaiting()
	before, now := f.reviewed, sample{t.Clock.Now(), f.received.Load()}
	if now.at.Sub(before.at) < reviewInterval { // it began again after this review was planned
		return
	}
	f.reviewed = now
	isComplete := f.total > 0 && now.received >= f.total // what is left to do is local
	isSlow := float64(now.received-before.received) < leastRate*now.at.Sub(before.at).Seconds()
	switch {
	case now.at.Sub(f.begunAt) >= longestRun:
		f.cancel(errTooLong)
	case !f.hasPlace, f.lane == slow, isComplete:
	case isSlow, now.at.Sub(f.placedAt) >= turns[f.lane]:
		t.demoteFetch(f)
	}
}

// The following methods require the lock to be held.

// demoteFetch moves a fetch to the slow lane. If that is full, the fetch stays where it is until another namespace
// needs its place. Only then does it lose the bytes that it has received.
func (t *Tracker) demoteFetch(f *Fetch) {
	switch {
	case t.canHavePlace(slow, f.namespace):
		t.givePlace(f, slow, f.namespace)
	case t.isWanted(f):
		t.takePlace(f, slow)
	}
}

// isWanted reports whether another namespace would use a fetch's place.
func (t *Tracker) isWanted(f *Fetch) bool {
	for _, namespace := range t.waitingFor(f.lane) {
		if namespace != f.namespace && t.isBelowShare(f.lane, namespace) {
			return true
		}
	}
	return false
}

// countFetches returns how many places a namespace has in a lane.
func (t *Tracker) countFetches(l lane, namespace string) (n int) {
	for _, f := range t.placed {
		if f.lane == l && f.namespace == namespace {
			n++
		}
	}
	return n
}

// isBelowShare reports whether a namespace has fewer places than it may have. No namespace takes all, so that fetches
// that never end delay only those of the same namespace.
func (t *Tracker) isBelowShare(l lane, namespace string) bool {
	return t.Concurrency == 0 || t.countFetches(l, namespace) < max(t.Concurrency-1, 1)
}

// hasRoom reports whether a lane has a free place.
func (t *Tracker) hasRoom(l lane) bool {
	taken := 0
	for _, f := range t.placed {
		if f.lane == l {
			taken++
		}
	}
	return t.Concurrency == 0 || taken < t.Concurrency
}

// canHavePlace reports whether a namespace may have one more place in a lane, be it one that another loses to it.
func (t *Tracker) canHavePlace(l lane, namespace string) bool {
	return t.isBelowShare(l, namespace) && (t.hasRoom(l) || t.findVictim(l, namespace) != nil)
}

// findVictim returns the slowest of the fetches that may lose their place in the slow lane to a namespace: those of
// namespaces that have at least two places more, and those whose turn is over if it has none.
func (t *Tracker) findVictim(l lane, namespace string) (victim *Fetch) {
	if l != slow {
		return nil
	}
	now, own := t.Clock.Now(), t.countFetches(l, namespace)
	mayRotate := own == 0 && now.Sub(t.rotatedAt) >= turns[l]
	rate := func(f *Fetch) float64 { return float64(f.received.Load()) / now.Sub(f.begunAt).Seconds() }
	for _, f := range t.placed {
		isOver := mayRotate && now.Sub(f.placedAt) >= turns[l]<<f.losses
		mayLose := f.lane == l && (isOver || t.countFetches(l, f.namespace) > own+1)
		if mayLose && (victim == nil || rate(f) < rate(victim)) {
			victim = f
		}
	}
	return victim
}

// givePlace moves a fetch to a place that it may have.
func (t *Tracker) givePlace(f *Fetch, l lane, namespace string) {
	t.freePlace(f)
	if !t.hasRoom(l) {
		victim := t.findVictim(l, namespace)
		if t.countFetches(l, victim.namespace) <= t.countFetches(l, namespace)+1 {
			t.rotatedAt = t.Clock.Now()
		}
		t.takePlace(victim, l)
	}
	f.hasPlace, f.lane, f.namespace, f.placedAt = true, l, namespace, t.Clock.Now()
	t.placed = append(t.placed, f)
}

// takePlace ends the run of a fetch, which waits for a place in a lane then.
func (t *Tracker) takePlace(f *Fetch, next lane) {
	t.freePlace(f)
	if f.lane == slow {
		f.losses++
	}
	f.lane = next
	f.cancel(errPlaceLost)
}

func (t *Tracker) freePlace(f *Fetch) {
	f.hasPlace = false
	t.placed = slices.DeleteFunc(t.placed, func(other *Fetch) bool { return other == f })
}

// nextNumber returns the number of an arrival or a begin, which is greater than all before.
func (t *Tracker) nextNumber() uint64 {
	t.counter++
	return t.counter
}

// enqueueFetch has a fetch wait for a place, behind those that do.
func (t *Tracker) enqueueFetch(f *Fetch) {
	f.waits, f.arrival, f.status = true, t.nextNumber(), f.description+": "+errPlaceLost.Error()
}

// waitingFor returns the fetches that wait for a place in a lane, with each namespace that has a server which waits
// for the fetch.
func (t *Tracker) waitingFor(l lane) iter.Seq2[*Fetch, string] {
	return func(yield func(*Fetch, string) bool) {
		for _, s := range t.servers {
			for _, c := range s.claims {
				if c.fetch != nil && c.fetch.waits && c.fetch.lane == l && !yield(c.fetch, s.namespace) {
					return
				}
			}
		}
	}
}

// admitWaiting begins the fetches that can have a place.
func (t *Tracker) admitWaiting() {
	for l := range laneCount {
		for f, namespace := t.findNext(l); f != nil; f, namespace = t.findNext(l) {
			t.served[namespace] = t.nextNumber()
			t.givePlace(f, l, namespace)
			f.begin()
		}
	}
	t.forgetServed()
}

// findNext returns the fetch that is next to have a place in a lane, and for which namespace. The namespaces take
// turns: first those with the fewest places, then those whose last fetch began longest ago. A namespace without one counts
// from its arrival, so that a new namespace, or one that comes again, does not pass one that waits.
func (t *Tracker) findNext(l lane) (next *Fetch, namespace string) {
	if l != slow && !t.hasRoom(l) {
		return nil, ""
	}
	places, can := map[string]int{}, map[string]bool{}
	for f, of := range t.waitingFor(l) {
		if _, known := can[of]; !known {
			places[of], can[of] = t.countFetches(l, of), t.canHavePlace(l, of)
		}
		if can[of] && (next == nil || cmp.Or(
			cmp.Compare(places[of], places[namespace]), cmp.Compare(t.served[of], t.served[namespace]),
			cmp.Compare(f.arrival, next.arrival), cmp.Compare(of, namespace)) < 0) {
			next, namespace = f, of
		}
	}
	return next, namespace
}

// forgetServed forgets the namespaces without waiting servers.
func (t *Tracker) forgetServed() {
	if len(t.served) <= len(t.placed) {
		return
	}
	has := map[string]bool{}
	for _, s := range t.servers {
		has[s.namespace] = true
	}
	maps.DeleteFunc(t.served, func(namespace string, _ uint64) bool { return !has[namespace] })
}
