// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"sync"

	"k8s.io/utils/third_party/forked/golang/btree"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// lines has the requests that are due, in one line for each namespace, and shares the workers between
// the lines. It is the storage of a workqueue, which calls Push, Touch, Pop and Len under another
// lock. pickRequest chooses the request that the next Pop returns.
type lines struct {
	mu      sync.Mutex
	changed *sync.Cond // a request is due, a worker is free, or the lines are closed
	workers int
	busy    int    // workers that have a request
	order   uint64 // the number of times that a request was added or picked
	turns   int    // the number of picked requests
	closed  bool
	lines   map[string]*line // keyed by namespace
	due     map[reconcile.Request]*entry
	// priorities has the priorities of requests that were added and not picked yet, and handedOut the
	// priorities of requests that workers have.
	priorities, handedOut map[reconcile.Request]int
	picked                []*entry // picked, and not returned by Pop yet
}

// line has the due requests of a namespace.
type line struct {
	requests *btree.BTree[*entry]
	busy     int    // workers that have a request of the line
	served   uint64 // the value of lines.order when a request was last picked
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

// isBefore orders the requests of a line: by priority, then by the time of their addition.
func isBefore(a, b *entry) bool {
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	return a.order < b.order
}

// maxShare limits the workers of a namespace that has more than one, as a multiple of the idle workers.
const maxShare = 3

// MayHaveWorker reports whether a line with busy workers may get one of the idle workers. A line may always have one
// worker. It may have more as long as a quarter of the workers that other namespaces do not use stays idle.
func MayHaveWorker(busy, idle int) bool { return busy == 0 || busy+1 <= maxShare*(idle-1) }

// turnPeriod says that one of turnPeriod picks ignores the priorities, so that requests of a high priority cannot
// delay the other requests forever.
const turnPeriod = 4

// nextLine returns the line from which the next request is picked, or nil if there is none: the line whose first
// request has the highest priority. Between equal lines, it returns the line that was served longest ago.
func (l *lines) nextLine() (next *line) {
	var first *entry
	isTurn := (l.turns+1)%turnPeriod == 0
	for _, candidate := range l.lines {
		e, ok := candidate.requests.Min()
		switch {
		case !ok || !MayHaveWorker(candidate.busy, l.workers-l.busy):
		case next == nil, !isTurn && e.priority > first.priority, (isTurn || e.priority == first.priority) && candidate.served < next.served:
			next, first = candidate, e
		}
	}
	return next
}

// pickRequest waits until a worker may have a request, and picks the request for the next Pop. It returns true once the
// queue is closed.
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

// finishRequest records that the worker of a request is idle again.
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

// setPriority raises the priority of a request that is about to be added.
func (l *lines) setPriority(request reconcile.Request, priority int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have, ok := l.priorities[request]; !ok || priority > have {
		l.priorities[request] = priority
	}
}

// wantedPriority returns the priority with which a request was added. A request that was added for later, and has been
// picked since, lacks one: it is no longer urgent.
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
	namespace := l.lines[request.Namespace]
	if namespace == nil {
		namespace = &line{requests: btree.New(8, isBefore), served: l.order}
		l.lines[request.Namespace] = namespace
	}
	e := &entry{request, l.wantedPriority(request), l.order}
	l.due[request] = e
	namespace.requests.ReplaceOrInsert(e)
	l.changed.Signal()
}

// Touch implements workqueue.Queue. It is called when a due request is added again, maybe with a higher priority.
func (l *lines) Touch(request reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, priority := l.due[request], l.wantedPriority(request)
	if e == nil || priority <= e.priority {
		return
	}
	namespace := l.lines[request.Namespace]
	namespace.requests.Delete(e)
	l.order++
	e.priority, e.order = priority, l.order
	namespace.requests.ReplaceOrInsert(e)
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

// Len implements workqueue.Queue. It returns how often Pop may be called.
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

// close makes pickRequest return at once.
func (l *lines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
}
