// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"sync"

	"k8s.io/utils/third_party/forked/golang/btree"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// lines has the requests that are due, in a line for each namespace, and shares the workers between
// the lines. It is the storage of a workqueue, which calls Push, Touch, Pop and Len under another
// lock: pickRequest chooses the request that the next Pop returns.
type lines struct {
	mu      sync.Mutex
	changed *sync.Cond // a request is due, a worker is free, or the lines are closed
	workers int
	busy    int    // workers that have a request
	order   uint64 // number of the last request that was added or handed out
	turns   int    // requests handed out
	closed  bool
	lines   map[string]*line // by namespace
	due     map[reconcile.Request]*entry
	// priorities has the priority of each request that was added and not handed out yet, handedOut of each
	// request that a worker has.
	priorities, handedOut map[reconcile.Request]int
	picked                []*entry
}

// line has the requests of a namespace that are due.
type line struct {
	requests *btree.BTree[*entry]
	busy     int    // workers that have a request of the line
	served   uint64 // when a request was last handed out
}

type entry struct {
	request  reconcile.Request
	priority int
	order    uint64
}

func newLines(workers int) *lines {
	l := &lines{
		workers: workers, lines: map[string]*line{}, due: map[reconcile.Request]*entry{},
		priorities: map[reconcile.Request]int{}, handedOut: map[reconcile.Request]int{},
	}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// isBefore orders the requests of a line.
func isBefore(a, b *entry) bool {
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	return a.order < b.order
}

// maxShare is how many times the workers that stay idle a namespace may have.
const maxShare = 3

// mayHaveWorker reports whether a line may have one of the idle workers: its first one, or another one as
// long as a quarter of those that other namespaces leave stays idle.
func mayHaveWorker(busy, idle int) bool { return busy == 0 || busy+1 <= maxShare*(idle-1) }

// turnPeriod is how often a line gets its turn whatever the priority of its requests, so that those of no
// priority are delayed by others without end.
const turnPeriod = 4

// nextLine returns the line whose first request is handed out next, nil if there is none: the one with the highest
// priority, and of several the one that was served longest ago.
func (l *lines) nextLine() (next *line) {
	var first *entry
	isTurn := (l.turns+1)%turnPeriod == 0
	for _, candidate := range l.lines {
		e, ok := candidate.requests.Min()
		switch {
		case !ok || !mayHaveWorker(candidate.busy, l.workers-l.busy):
		case next == nil, !isTurn && e.priority > first.priority, (isTurn || e.priority == first.priority) && candidate.served < next.served:
			next, first = candidate, e
		}
	}
	return next
}

// pickRequest waits until a request may be handed out, which the next Pop returns. closed is set once the queue is closed.
func (l *lines) pickRequest() (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.nextLine()
	for ; next == nil && !l.closed; next = l.nextLine() {
		l.changed.Wait()
	}
	if l.closed {
		return true
	}
	e, _ := next.requests.DeleteMin()
	l.order++
	l.turns++
	next.busy, next.served = next.busy+1, l.order
	l.busy++
	delete(l.due, e.request)
	delete(l.priorities, e.request)
	l.picked = append(l.picked, e)
	return false
}

// finishRequest notes that the worker of a request is free.
func (l *lines) finishRequest(request reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.handedOut, request)
	l.busy--
	namespace := l.lines[request.Namespace]
	namespace.busy--
	if namespace.busy == 0 && namespace.requests.Len() == 0 {
		delete(l.lines, request.Namespace)
	}
	l.changed.Broadcast()
}

// setPriority sets the priority of a request that is about to be added, unless it has a higher one.
func (l *lines) setPriority(request reconcile.Request, priority int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if has, ok := l.priorities[request]; !ok || priority > has {
		l.priorities[request] = priority
	}
}

// wantedPriority returns the priority with which a request was added. One that was handed out since it was added for
// later has none, and is no longer urgent.
func (l *lines) wantedPriority(request reconcile.Request) int {
	if priority, ok := l.priorities[request]; ok {
		return priority
	}
	return PriorityRoutine
}

// Push implements workqueue.Queue.
func (l *lines) Push(request reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order++
	of := l.lines[request.Namespace]
	if of == nil {
		of = &line{requests: btree.New(8, isBefore), served: l.order}
		l.lines[request.Namespace] = of
	}
	e := &entry{request, l.wantedPriority(request), l.order}
	l.due[request] = e
	of.requests.ReplaceOrInsert(e)
	l.changed.Signal()
}

// Touch implements workqueue.Queue: a request that is due may have a higher priority now.
func (l *lines) Touch(request reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, priority := l.due[request], l.wantedPriority(request)
	if e == nil || priority <= e.priority {
		return
	}
	of := l.lines[request.Namespace]
	of.requests.Delete(e)
	l.order++
	e.priority, e.order = priority, l.order
	of.requests.ReplaceOrInsert(e)
}

// Pop implements workqueue.Queue.
func (l *lines) Pop() reconcile.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.picked[0]
	l.picked = l.picked[1:]
	l.handedOut[first.request] = first.priority
	return first.request
}

// Len implements workqueue.Queue: how often Pop may be called.
func (l *lines) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.picked)
}

// priorityOf returns the priority of a request that a worker has.
func (l *lines) priorityOf(request reconcile.Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.handedOut[request]
}

func (l *lines) countDue() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due)
}

// close has pick return at once.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
}
