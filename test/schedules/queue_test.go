// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"cloudnative.tw/drover/internal/controller/queue"
)

// workers is how many workers a process has.
const workers = 2

// gatedQueue is Drover's queue. Requests wait at the gate before they are queued, and workers
// after they have taken a request.
type gatedQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]

	process *process
}

func newQueue(p *process) func(string, workqueue.TypedRateLimiter[reconcile.Request]) queue.Queue {
	return func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) queue.Queue {
		inner := queue.New(workers, clock.RealClock{})(name, limiter).(priorityqueue.PriorityQueue[reconcile.Request]) //nolint:forcetypeassert // it is one
		return &gatedQueue{PriorityQueue: inner, process: p}
	}
}

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q *gatedQueue) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	for _, item := range items {
		priority := 0
		if o.Priority != nil {
			priority = *o.Priority
		}
		name := fmt.Sprintf("%s enqueues %s at priority %d", q.process.name, item.Name, priority)
		if o.After > 0 || o.RateLimited {
			name += " later"
		}
		q.process.environment.gate.add(&operation{name: name, owner: q.process, kind: kindRequest, run: func() bool {
			q.PriorityQueue.AddWithOpts(o, item)
			return true
		}})
	}
}

// Add implements workqueue.TypedInterface.
func (q *gatedQueue) Add(item reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (q *gatedQueue) AddAfter(item reconcile.Request, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, item)
}

// AddRateLimited implements workqueue.TypedRateLimitingInterface.
func (q *gatedQueue) AddRateLimited(item reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, item)
}

// GetWithPriority implements priorityqueue.PriorityQueue.
func (q *gatedQueue) GetWithPriority() (item reconcile.Request, priority int, shutdown bool) {
	item, priority, shutdown = q.PriorityQueue.GetWithPriority()
	if shutdown {
		return item, priority, shutdown
	}
	_, err := call(context.Background(), q.process, kindWork, q.process.name+" reconciles "+item.Name, func() (struct{}, error) {
		return struct{}{}, nil
	})
	return item, priority, err != nil
}

// Get implements workqueue.TypedInterface.
func (q *gatedQueue) Get() (item reconcile.Request, shutdown bool) {
	item, _, shutdown = q.GetWithPriority()
	return item, shutdown
}
