// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"cmp"
	"iter"
	"maps"
	"time"
)

// lane is a queue for one kind of fetch. Each lane has separate slots, so that long fetches delay only other long ones.
type lane int

// A fetch begins in the quick lane. It keeps the received bytes when it moves to a free slot of another lane.
const (
	quick lane = iota
	// large is for contents of largeThreshold bytes or more, or of unknown size.
	large
	// slow is for fetches that have lost their slot in another lane.
	slow
	laneCount
)

const (
	// DefaultConcurrency is how many slots a driver has in each lane.
	DefaultConcurrency = 4

	// largeThreshold is the size in bytes at which a content counts as large.
	largeThreshold = 64 << 20
	// reviewInterval is the time between two reviews of a fetch. A fetch may keep its slot if it received
	// at least minRate bytes a second since the last review.
	reviewInterval = 10 * time.Second
	minRate        = 256 << 10
	// longestRun limits how long an unfinished file of a fetch uses space on the disk.
	longestRun = 24 * time.Hour
)

// turns limit how long a fetch keeps its slot in a lane, whatever its rate. In the slow lane a fetch loses its slot
// only to a namespace that has none there, and only one fetch in each turn. After each loss the fetch keeps its next
// slot twice as long, so that every fetch that needs less than longestRun succeeds.
var turns = [laneCount]time.Duration{quick: time.Minute, large: 10 * time.Minute, slow: 15 * time.Minute}

// reviewFetch checks whether a fetch may keep its slot.
func (t *Tracker) reviewFetch(f *Fetch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.admitWaiting()
	previous, now := f.reviewed, sample{t.Clock.Now(), f.received.Load()}
	if now.at.Sub(previous.at) < reviewInterval { // the review was planned for the previous run
		return
	}
	f.reviewed = now
	isComplete := f.total > 0 && now.received >= f.total // for example a checksum is left to compute
	isSlow := float64(now.received-previous.received) < minRate*now.at.Sub(previous.at).Seconds()
	switch {
	case now.at.Sub(f.begunAt) >= longestRun:
		f.cancel(errTooLong)
	case !f.hasSlot, f.lane == slow, isComplete:
	case isSlow, now.at.Sub(f.assignedAt) >= turns[f.lane]:
		t.demoteFetch(f)
	}
}

// The following methods require the lock to be held.

// demoteFetch moves a fetch to the slow lane. If the slow lane is full, the fetch keeps its slot until another namespace
// needs it. The fetch then loses the bytes that it has received.
func (t *Tracker) demoteFetch(f *Fetch) {
	switch {
	case t.slots.hasSlotFor(slow, f.namespace):
		t.slots.assignSlot(f, slow, f.namespace)
	case t.isWanted(f):
		t.slots.revokeSlot(f, slow)
	}
}

// isWanted reports whether another namespace could use the slot of a fetch now.
func (t *Tracker) isWanted(f *Fetch) bool {
	for _, namespace := range t.waitingFor(f.lane) {
		if namespace != f.namespace && t.slots.isBelowShare(f.lane, namespace) {
			return true
		}
	}
	return false
}

// nextNumber returns a number that is greater than all earlier ones, for the order of arrivals and starts.
func (t *Tracker) nextNumber() uint64 {
	t.counter++
	return t.counter
}

// enqueueFetch makes a fetch wait for a slot, behind the other fetches that wait.
func (t *Tracker) enqueueFetch(f *Fetch) {
	f.isWaiting, f.arrival, f.status = true, t.nextNumber(), f.description+": "+errSlotLost.Error()
}

// waitingFor returns the fetches that wait for a slot in a lane, each with the namespace of a server that waits for
// the fetch. A fetch is returned once for each such server.
func (t *Tracker) waitingFor(l lane) iter.Seq2[*Fetch, string] {
	return func(yield func(*Fetch, string) bool) {
		for _, s := range t.servers {
			for _, c := range s.claims {
				if c.fetch != nil && c.fetch.isWaiting && c.fetch.lane == l && !yield(c.fetch, s.namespace) {
					return
				}
			}
		}
	}
}

// admitWaiting starts waiting fetches as long as there are slots for them.
func (t *Tracker) admitWaiting() {
	for l := range laneCount {
		for f, namespace := t.findNext(l); f != nil; f, namespace = t.findNext(l) {
			t.served[namespace] = t.nextNumber()
			t.slots.assignSlot(f, l, namespace)
			f.startRun()
		}
	}
	t.forgetServed()
}

// findNext returns the fetch that gets the next slot in a lane, and the namespace whose share the slot counts against. The
// namespace with the fewest slots comes first, then the one whose last fetch began longest ago. For a namespace without
// a fetch, its arrival counts, so that it does not overtake a namespace that waits already.
func (t *Tracker) findNext(l lane) (next *Fetch, namespace string) {
	if l != slow && !t.slots.hasFreeSlot(l) {
		return nil, ""
	}
	held, mayHaveMore := map[string]int{}, map[string]bool{}
	for f, other := range t.waitingFor(l) {
		if _, known := mayHaveMore[other]; !known {
			held[other], mayHaveMore[other] = t.slots.countFetches(l, other), t.slots.hasSlotFor(l, other)
		}
		if mayHaveMore[other] && (next == nil || cmp.Or(
			cmp.Compare(held[other], held[namespace]), cmp.Compare(t.served[other], t.served[namespace]),
			cmp.Compare(f.arrival, next.arrival), cmp.Compare(other, namespace)) < 0) {
			next, namespace = f, other
		}
	}
	return next, namespace
}

// forgetServed forgets the namespaces without waiting servers.
func (t *Tracker) forgetServed() {
	if len(t.served) <= len(t.slots.all) {
		return
	}
	waiting := map[string]bool{}
	for _, s := range t.servers {
		waiting[s.namespace] = true
	}
	maps.DeleteFunc(t.served, func(namespace string, _ uint64) bool { return !waiting[namespace] })
}
