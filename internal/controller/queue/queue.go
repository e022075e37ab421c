// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue is the work queue of a per-driver controller. queue.go has the
// queue, and priority.go what comes first.
package queue

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	firstAPIRetry = 5 * time.Millisecond
	lastAPIRetry  = 10 * time.Second
)

// Queue is the interface of controller-runtime's event sources.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// drainingQueue is controller-runtime's priority queue, shut down only when no
// caller waits in Get. In v0.24, a shutdown that meets an item on its way to a
// worker leaves the queue locked forever. The other workers then never end, and the
// stop fails (https://github.com/kubernetes-sigs/controller-runtime/issues/3538,
// fixed in v0.25, which requires Kubernetes 1.37).
type drainingQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]

	mu      sync.Mutex
	closed  bool
	waiting int // callers of Get
}

// New returns the constructor of a queue for controller-runtime.
func New(log logr.Logger) func(string, workqueue.TypedRateLimiter[reconcile.Request]) Queue {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) Queue {
		return &drainingQueue{PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) {
			o.Log, o.RateLimiter = log.WithValues("controller", name), limiter
		})}
	}
}

// NewRateLimiter returns the delays of objects whose write failed: 5 ms, doubling to
// 10 s. Backoff for engines is in the policy.
func NewRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstAPIRetry, lastAPIRetry)
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (q *drainingQueue) GetWithPriority() (item reconcile.Request, priority int, shutdown bool) {
	if !q.beginGet() {
		return item, 0, true
	}
	item, priority, shutdown = q.PriorityQueue.GetWithPriority()
	return item, priority, q.endGet() || shutdown
}

// Get implements workqueue.TypedInterface.
func (q *drainingQueue) Get() (item reconcile.Request, shutdown bool) {
	item, _, shutdown = q.GetWithPriority()
	return item, shutdown
}

func (q *drainingQueue) beginGet() (open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.waiting++
	}
	return !q.closed
}

// endGet reports whether the queue was closed meanwhile. The last waiting caller
// shuts it down.
func (q *drainingQueue) endGet() (closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	if q.closed && q.waiting == 0 {
		q.PriorityQueue.ShutDown()
	}
	return q.closed
}

// ShutDown gives every waiting caller an item, so that its Get returns.
func (q *drainingQueue) ShutDown() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	if q.waiting == 0 {
		q.PriorityQueue.ShutDown()
	}
	for n := range q.waiting {
		farewell := reconcile.Request{}
		farewell.Name = "shutdown/" + strconv.Itoa(n) // no object has such a name
		q.AddWithOpts(priorityqueue.AddOpts{Priority: new(math.MaxInt)}, farewell)
	}
}

// ShutDownWithDrain implements workqueue.TypedInterface.
func (q *drainingQueue) ShutDownWithDrain() { q.ShutDown() }

// Add enqueues a VirtualMachine.
func Add(q Queue, key types.NamespacedName, priority int) {
	req := reconcile.Request{NamespacedName: key}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, req)
		return
	}
	q.Add(req)
}
