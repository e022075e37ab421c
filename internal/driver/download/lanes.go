// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"cmp"
	"iter"
	"maps"
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
	case t.places.hasPlaceFor(slow, f.namespace):
		t.places.placeFetch(f, slow, f.namespace)
	case t.isWanted(f):
		t.places.displaceFetch(f, slow)
	}
}

// isWanted reports whether another namespace would use a fetch's place.
func (t *Tracker) isWanted(f *Fetch) bool {
	for _, namespace := range t.waitingFor(f.lane) {
		if namespace != f.namespace && t.places.isBelowShare(f.lane, namespace) {
			return true
		}
	}
	return false
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
			t.places.placeFetch(f, l, namespace)
			f.begin()
		}
	}
	t.forgetServed()
}

// findNext returns the fetch that is next to have a place in a lane, and for which namespace. The namespaces take
// turns: first those with the fewest places, then those whose last fetch began longest ago. A namespace without one counts
// from its arrival, so that a new namespace, or one that comes again, does not pass one that waits.
func (t *Tracker) findNext(l lane) (next *Fetch, namespace string) {
	if l != slow && !t.places.hasRoom(l) {
		return nil, ""
	}
	places, can := map[string]int{}, map[string]bool{}
	for f, of := range t.waitingFor(l) {
		if _, known := can[of]; !known {
			places[of], can[of] = t.places.countFetches(l, of), t.places.hasPlaceFor(l, of)
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
	if len(t.served) <= len(t.places.all) {
		return
	}
	has := map[string]bool{}
	for _, s := range t.servers {
		has[s.namespace] = true
	}
	maps.DeleteFunc(t.served, func(namespace string, _ uint64) bool { return !has[namespace] })
}
