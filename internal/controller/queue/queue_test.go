// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
	"cloudnative.tw/drover/test/framework"
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

// TestCreatePriority covers the priorities of objects that are new to a leader.
func TestCreatePriority(t *testing.T) {
	t.Parallel()
	done := framework.NewVM("done").Generation(1).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })
	tests := map[string]struct {
		event event.TypedCreateEvent[*api.VirtualMachine]
		want  int
	}{
		"there at the start and done": {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.Obj(), IsInInitialList: true}, PriorityRoutine},
		"there at the start and new":  {event.TypedCreateEvent[*api.VirtualMachine]{Object: framework.NewVM("new").Generation(1).Obj(), IsInInitialList: true}, PriorityUser},
		"created":                     {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.Obj()}, PriorityUser},
		"being deleted":               {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.DeletionTimestamp(time.Now()).Obj(), IsInInitialList: true}, PriorityDeletion},
	}
	for name, tc := range tests {
		if got := CreatePriority(tc.event); got != tc.want {
			t.Errorf("%s: priority %d, want %d", name, got, tc.want)
		}
	}
}

// TestUpdatePriorityOfARestoredBinding checks that the annotation that
// DeletionBlocked requests enqueues the VM with the driver that it names.
func TestUpdatePriorityOfARestoredBinding(t *testing.T) {
	now := metav1.Time{Time: policytest.T0}
	old := framework.NewVM("vm").UID("uid-1").Generation(2).Obj()
	old.Finalizers, old.DeletionTimestamp = []string{api.FinalizerServer}, &now
	old.Status.ObservedGeneration, old.Status.Driver = 1, "fake"
	vm := old.DeepCopy()
	vm.Annotations = map[string]string{api.AnnotationBound: "other/x"}
	if _, ok := UpdatePriority(old, vm); !ok {
		t.Error("the binding that the message requests enqueues nothing for its driver")
	}
}
