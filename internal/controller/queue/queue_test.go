// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func newTestQueue() priorityqueue.PriorityQueue[reconcile.Request] {
	q := New(logr.Discard())("test", NewRateLimiter())
	return q.(priorityqueue.PriorityQueue[reconcile.Request])
}

func request(n int) (r reconcile.Request) {
	r.Name = "vm-" + strconv.Itoa(n)
	return r
}

// TestShutDownEndsWorkers checks that busy and waiting workers end, whatever item
// is on its way to them.
func TestShutDownEndsWorkers(t *testing.T) {
	t.Parallel()
	for range 300 {
		q := newTestQueue()
		var workers sync.WaitGroup
		for worker := range 16 {
			workers.Go(func() {
				for n := worker; ; n += 16 {
					if worker%2 == 0 {
						q.Add(request(n))
					}
					item, _, shutdown := q.GetWithPriority()
					if shutdown {
						return
					}
					q.Done(item)
				}
			})
		}
		time.Sleep(time.Millisecond) // of work, as far as the host lets them
		q.ShutDown()
		workers.Wait()
		if _, shutdown := q.Get(); !shutdown || !q.ShuttingDown() {
			t.Fatal("the queue is not shut down")
		}
	}
}

// TestQueueIsAPriorityQueue checks that the wrapper still is one.
func TestQueueIsAPriorityQueue(t *testing.T) {
	t.Parallel()
	q := newTestQueue()
	for n, priority := range []int{PriorityRoutine, PriorityDeletion, PriorityUser} {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request(n))
	}
	for _, want := range []int{1, 2, 0} {
		if item, _, _ := q.GetWithPriority(); item != request(want) {
			t.Errorf("got %s, want %s", item.Name, request(want).Name)
		}
	}
	q.ShutDown()
}
