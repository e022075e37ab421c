// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// watcher sends the UIDs of one Watch: those of records that change, and those of
// servers that change by the passage of time alone.
type watcher struct {
	driver  *Driver
	mailbox *mailbox
	out     chan types.UID
	queue   uidQueue
	timer   clock.Timer

	transitions transitionHeap
	// nextByUID is the time of each UID's next transition; others in transitions are
	// stale.
	nextByUID map[types.UID]time.Time
}

func (w *watcher) sendEvents(ctx context.Context) {
	defer close(w.out)
	defer w.timer.Stop()
	for {
		// A nil channel is never ready: there is nothing to send.
		var out chan types.UID
		var head types.UID
		if len(w.queue.order) > 0 {
			out, head = w.out, w.queue.order[0]
		}
		select {
		case <-ctx.Done():
			return
		case <-w.mailbox.ready:
			uids, open := w.mailbox.takeAll()
			if !open {
				return
			}
			w.queueChanged(uids)
		case <-w.timer.C():
			w.resetTimer()
		case out <- head:
			w.queue.removeFirst()
		}
	}
}

// queueChanged queues servers whose records changed, except those of other clusters. A
// removed one is always queued, because its cluster is unknown.
func (w *watcher) queueChanged(uids []types.UID) {
	for _, uid := range uids {
		r, err := w.driver.store.getRecord(uid)
		if err == nil && r != nil {
			if r.ClusterID != w.driver.clusterID {
				continue
			}
			w.scheduleTransition(*r)
		}
		w.queue.add(uid)
	}
	w.resetTimer()
}

// scheduleTransition records when a server will change by itself.
func (w *watcher) scheduleTransition(r Record) {
	at := nextTransition(r, w.driver.clock.Now())
	if at.IsZero() {
		delete(w.nextByUID, r.UID)
		return
	}
	if !w.nextByUID[r.UID].Equal(at) {
		w.nextByUID[r.UID] = at
		heap.Push(&w.transitions, transition{at: at, uid: r.UID})
	}
}

// queueDue queues the servers whose transition is due.
func (w *watcher) queueDue(now time.Time) {
	for len(w.transitions) > 0 && !now.Before(w.transitions[0].at) {
		m := heap.Pop(&w.transitions).(transition)
		if w.nextByUID[m.uid].Equal(m.at) {
			delete(w.nextByUID, m.uid)
			w.queue.add(m.uid)
		}
	}
}

// resetTimer sets the timer for the next transition. A clock that is stepped may pass its
// time before the timer is set, hence the loop.
func (w *watcher) resetTimer() {
	w.timer.Stop()
	for {
		now := w.driver.clock.Now()
		w.queueDue(now)
		if len(w.transitions) == 0 {
			return
		}
		next := w.transitions[0].at
		w.timer.Reset(next.Sub(now))
		if w.driver.clock.Now().Before(next) {
			return
		}
	}
}

type transition struct {
	at  time.Time
	uid types.UID
}

// transitionHeap has the earliest transition first.
type transitionHeap []transition

func (h transitionHeap) Len() int           { return len(h) }
func (h transitionHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h transitionHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push and Pop are for package heap.
func (h *transitionHeap) Push(x any) { *h = append(*h, x.(transition)) }

// Pop removes the last transition.
func (h *transitionHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// uidQueue is a queue that holds each UID at most once.
type uidQueue struct {
	order  []types.UID
	queued map[types.UID]bool
}

func (q *uidQueue) add(uid types.UID) {
	if q.queued[uid] {
		return
	}
	if q.queued == nil {
		q.queued = map[types.UID]bool{}
	}
	q.queued[uid] = true
	q.order = append(q.order, uid)
}

func (q *uidQueue) removeFirst() {
	delete(q.queued, q.order[0])
	q.order = q.order[1:]
}

// mailbox holds the UIDs that one watcher has not taken yet. It never blocks the sender
// and never loses a UID.
type mailbox struct {
	mu     sync.Mutex
	uids   uidQueue
	closed bool
	// ready has a value while there is something to take.
	ready chan struct{}
}

func newMailbox() *mailbox { return &mailbox{ready: make(chan struct{}, 1)} }

func (b *mailbox) add(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uids.add(uid)
	b.signalReady()
}

func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.signalReady()
}

func (b *mailbox) signalReady() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// takeAll empties the mailbox; open is false when it was closed.
func (b *mailbox) takeAll() (uids []types.UID, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uids = b.uids.order
	b.uids = uidQueue{}
	return uids, !b.closed
}
