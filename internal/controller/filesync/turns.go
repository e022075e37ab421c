// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filesync

import (
	"context"
	"slices"
	"sync"

	"cloudnative.tw/drover/internal/controller/queue"
)

// turns shares slots between namespaces: an idle slot goes to the namespace that got one longest ago.
type turns struct {
	mu    sync.Mutex
	idle  int
	count uint64           // of slots given, and of lines that began
	lines map[string]*line // by namespace
}

// line has the requests of a namespace.
type line struct {
	busy    int
	served  uint64          // turns.count when the line last got a slot, or began
	waiting []chan struct{} // closed when a request gets its slot
}

func newTurns(slots int) *turns { return &turns{idle: slots, lines: map[string]*line{}} }

// take waits for a slot, which the caller must give back unless take fails.
func (t *turns) take(ctx context.Context, namespace string) error {
	granted := make(chan struct{})
	t.join(namespace, granted)
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		t.leave(namespace, granted)
		return context.Cause(ctx)
	}
}

func (t *turns) join(namespace string, granted chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[namespace]
	if l == nil {
		t.count++
		l = &line{served: t.count}
		t.lines[namespace] = l
	}
	l.waiting = append(l.waiting, granted)
	t.grant()
}

// leave takes back a request, or gives back its slot if it has one by now.
func (t *turns) leave(namespace string, granted chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[namespace]
	if n := slices.Index(l.waiting, granted); n >= 0 {
		l.waiting = slices.Delete(l.waiting, n, n+1)
	} else {
		l.busy, t.idle = l.busy-1, t.idle+1
	}
	t.tidy(namespace)
}

// give gives a slot back.
func (t *turns) give(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines[namespace].busy--
	t.idle++
	t.tidy(namespace)
}

// tidy drops a line that is not used, and grants what became idle. The caller holds the lock.
func (t *turns) tidy(namespace string) {
	if l := t.lines[namespace]; l.busy == 0 && len(l.waiting) == 0 {
		delete(t.lines, namespace)
	}
	t.grant()
}

// grant gives the idle slots to requests. The caller holds the lock.
func (t *turns) grant() {
	for next := t.next(); next != nil; next = t.next() {
		close(next.waiting[0])
		next.waiting = next.waiting[1:]
		t.count++
		t.idle--
		next.busy, next.served = next.busy+1, t.count
	}
}

// next returns the line that gets the next slot, or nil.
func (t *turns) next() (next *line) {
	for _, l := range t.lines {
		if t.idle > 0 && len(l.waiting) > 0 && queue.MayHaveWorker(l.busy, t.idle) && (next == nil || l.served < next.served) {
			next = l
		}
	}
	return next
}
