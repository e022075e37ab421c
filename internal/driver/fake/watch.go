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

// pump sends the UIDs of one Watch: those of records that change, and those of
// servers that change by the passage of time alone.
type pump struct {
	driver *Driver
	box    *mailbox
	out    chan types.UID
	queue  uidQueue
	timer  clock.Timer

	moments momentHeap
	// due is the current moment of each UID; others in moments are stale.
	due map[types.UID]time.Time
}

func (p *pump) run(ctx context.Context) {
	defer close(p.out)
	defer p.timer.Stop()
	for {
		// A nil channel is never ready: there is nothing to send.
		var out chan types.UID
		var head types.UID
		if len(p.queue.order) > 0 {
			out, head = p.out, p.queue.order[0]
		}
		select {
		case <-ctx.Done():
			return
		case <-p.box.ready:
			uids, open := p.box.take()
			if !open {
				return
			}
			p.changed(uids)
		case <-p.timer.C():
			p.arm()
		case out <- head:
			p.queue.pop()
		}
	}
}

// changed queues servers whose records changed, except those of other clusters. A
// removed one is always queued, because its cluster is unknown.
func (p *pump) changed(uids []types.UID) {
	for _, uid := range uids {
		r, err := p.driver.store.get(uid)
		if err == nil && r != nil {
			if r.ClusterID != p.driver.clusterID {
				continue
			}
			p.expect(*r)
		}
		p.queue.put(uid)
	}
	p.arm()
}

// expect records when a server will change by itself.
func (p *pump) expect(r Record) {
	at := nextMoment(r, p.driver.clock.Now())
	if at.IsZero() {
		delete(p.due, r.UID)
		return
	}
	if !p.due[r.UID].Equal(at) {
		p.due[r.UID] = at
		heap.Push(&p.moments, moment{at: at, uid: r.UID})
	}
}

// fire queues the servers whose moment has come.
func (p *pump) fire(now time.Time) {
	for len(p.moments) > 0 && !now.Before(p.moments[0].at) {
		m := heap.Pop(&p.moments).(moment)
		if p.due[m.uid].Equal(m.at) {
			delete(p.due, m.uid)
			p.queue.put(m.uid)
		}
	}
}

// arm sets the timer for the next moment. A clock that is stepped may pass that
// moment before the timer is set, hence the loop.
func (p *pump) arm() {
	p.timer.Stop()
	for {
		now := p.driver.clock.Now()
		p.fire(now)
		if len(p.moments) == 0 {
			return
		}
		next := p.moments[0].at
		p.timer.Reset(next.Sub(now))
		if p.driver.clock.Now().Before(next) {
			return
		}
	}
}

type moment struct {
	at  time.Time
	uid types.UID
}

// momentHeap has the earliest moment first.
type momentHeap []moment

func (h momentHeap) Len() int           { return len(h) }
func (h momentHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h momentHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push and Pop are for package heap.
func (h *momentHeap) Push(x any) { *h = append(*h, x.(moment)) }

// Pop takes the last moment.
func (h *momentHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// uidQueue is a queue that holds each UID at most once.
type uidQueue struct {
	order  []types.UID
	queued map[types.UID]bool
}

func (q *uidQueue) put(uid types.UID) {
	if q.queued[uid] {
		return
	}
	if q.queued == nil {
		q.queued = map[types.UID]bool{}
	}
	q.queued[uid] = true
	q.order = append(q.order, uid)
}

func (q *uidQueue) pop() {
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

func (b *mailbox) put(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uids.put(uid)
	b.notify()
}

func (b *mailbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.notify()
}

func (b *mailbox) notify() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take empties the mailbox; open is false when it was closed.
func (b *mailbox) take() (uids []types.UID, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uids = b.uids.order
	b.uids = uidQueue{}
	return uids, !b.closed
}
