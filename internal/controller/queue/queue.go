// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue is the work queue of a per-driver controller. queue.go has the queue,
// lines.go shares the workers between namespaces, and priority.go has the priorities.
package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	firstAPIRetry = 5 * time.Millisecond
	lastAPIRetry  = 10 * time.Second
)

// Queue is the interface of a queue to which the event sources of controller-runtime add requests.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// fairQueue is a workqueue with priorities that shares its workers between namespaces.
type fairQueue struct {
	Queue

	lines *lines
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = &fairQueue{}

// New returns a constructor, for controller-runtime, of queues with a number of workers.
func New(workers int, c clock.WithTicker) func(string, workqueue.TypedRateLimiter[reconcile.Request]) Queue {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) Queue {
		l := newLines(workers)
		due := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name, Clock: c, Queue: l})
		delayed := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Clock: c, Queue: due})
		return &fairQueue{workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{DelayingQueue: delayed}), l}
	}
}

// NewRateLimiter returns the rate limiter for objects whose write to the API failed: it delays them by
// 5 ms, doubling up to 10 s. Package policy has the backoff for failures of engines.
func NewRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstAPIRetry, lastAPIRetry)
}

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q *fairQueue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	for _, r := range requests {
		q.lines.setPriority(r, ptr.Deref(o.Priority, 0))
		if o.RateLimited {
			q.AddRateLimited(r)
		} else {
			q.AddAfter(r, o.After) // at once if that is zero
		}
	}
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (q *fairQueue) GetWithPriority() (r reconcile.Request, priority int, shutdown bool) {
	if q.lines.pickRequest() {
		return r, 0, true
	}
	r, shutdown = q.Queue.Get() // returns the picked request
	return r, q.lines.priorityOf(r), shutdown
}

// Get implements workqueue.TypedInterface.
func (q *fairQueue) Get() (r reconcile.Request, shutdown bool) {
	r, _, shutdown = q.GetWithPriority()
	return r, shutdown
}

// Done implements workqueue.TypedInterface.
func (q *fairQueue) Done(r reconcile.Request) {
	q.Queue.Done(r)
	q.lines.finishRequest(r)
}

// Len implements workqueue.TypedInterface: it returns how many requests are due.
func (q *fairQueue) Len() int { return q.lines.countDue() }

// ShutDown implements workqueue.TypedInterface. It drops requests that are due: the next leader finds the work again.
func (q *fairQueue) ShutDown() {
	q.lines.close()
	q.Queue.ShutDown()
}

// ShutDownWithDrain implements workqueue.TypedInterface.
func (q *fairQueue) ShutDownWithDrain() { q.ShutDown() }

// Add enqueues a VirtualMachine.
func Add(q Queue, key types.NamespacedName, priority int) {
	req := reconcile.Request{NamespacedName: key}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, req)
		return
	}
	q.Add(req)
}
