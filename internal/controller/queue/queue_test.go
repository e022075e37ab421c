// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func newTestQueue(workers int, c clock.WithTicker) priorityqueue.PriorityQueue[reconcile.Request] {
	q := New(workers, c)("", NewRateLimiter())
	return q.(priorityqueue.PriorityQueue[reconcile.Request])
}

func request(n int) (r reconcile.Request) {
	r.Name = "vm-" + strconv.Itoa(n)
	return r
}

// in returns a request of a namespace.
func in(namespace string, n int) reconcile.Request {
	r := request(n)
	r.Namespace = namespace
	return r
}

// TestShutDownEndsWorkers checks that busy and waiting workers end, whatever item
// is on its way to them.
func TestShutDownEndsWorkers(t *testing.T) {
	t.Parallel()
	for range 300 {
		q := newTestQueue(16, clock.RealClock{})
		var workers sync.WaitGroup
		for worker := range 16 {
			workers.Go(func() {
				for n := worker; ; n += 16 {
					if worker%2 == 0 {
						q.Add(in(strconv.Itoa(n%3), n))
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
		_, shutdown := q.Get()
		assert.Require(t, shutdown && q.ShuttingDown(), "the queue is not shut down")
	}
}

// TestShutDownLeavesWhatIsDue checks that no worker gets a request of a queue that was shut down.
func TestShutDownLeavesWhatIsDue(t *testing.T) {
	t.Parallel()
	q := newTestQueue(1, clock.RealClock{})
	q.Add(request(1))
	q.ShutDown()
	item, shutdown := q.Get()
	assert.True(t, shutdown, "got %s", item)
}

// held are requests that workers have, by namespace.
type held map[string][]reconcile.Request

// takeObject has workers take requests as long as one gets any.
func (h held) takeObject(l *lines) {
	for l.busy < l.workers && l.nextLine() != nil {
		_ = l.pickRequest()
		r := l.Pop()
		h[r.Namespace] = append(h[r.Namespace], r)
	}
}

// TestNamespacesShareWorkers checks that no namespace has all workers, however much it has to do, and that
// each of several has some.
func TestNamespacesShareWorkers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		workers int
		want    []int // workers of the namespaces, which come one after another
	}{
		"one worker":  {1, []int{1}},
		"two workers": {2, []int{1, 1}},
		"four":        {4, []int{3, 1}},
		"sixteen":     {16, []int{12, 3, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, handedOutTo := newLines(tc.workers), held{}
			for n, want := range tc.want {
				namespace := strconv.Itoa(n)
				for n := range 48 {
					l.Push(in(namespace, n))
				}
				if handedOutTo.takeObject(l); len(handedOutTo[namespace]) != want {
					t.Errorf("namespace %s has %d workers, want %d", namespace, len(handedOutTo[namespace]), want)
				}
			}
		})
	}
}

// TestRoutineBesideDeletions checks that a namespace with one request of the lowest priority waits for few
// workers where many other namespaces have more deletions than there are workers.
func TestRoutineBesideDeletions(t *testing.T) {
	t.Parallel()
	l, handedOutTo := newLines(4), held{}
	for namespace := range 8 {
		for n := range 48 {
			r := in(strconv.Itoa(namespace), n)
			l.setPriority(r, PriorityDeletion)
			l.Push(r)
		}
	}
	handedOutTo.takeObject(l)
	l.setPriority(in("small", 1), PriorityRoutine)
	l.Push(in("small", 1))
	handedOut := 0
	for len(handedOutTo["small"]) == 0 && handedOut < 8*48 {
		for namespace, requests := range handedOutTo {
			l.finishRequest(requests[0])
			delete(handedOutTo, namespace)
			handedOut++
			break
		}
		handedOutTo.takeObject(l)
	}
	if limit := turnPeriod * 9; handedOut > limit { // each of the others had its turn before
		t.Errorf("it got a worker after %d others, want at most %d", handedOut, limit)
	}
}

// TestTurnsOfOnePriority checks that namespaces take turns where priorities are the same, and that the
// requests of one keep their order.
func TestTurnsOfOnePriority(t *testing.T) {
	t.Parallel()
	l := newLines(1)
	for _, r := range []reconcile.Request{in("a", 1), in("a", 2), in("a", 3), in("b", 1), in("b", 2)} {
		l.Push(r)
	}
	for _, want := range []reconcile.Request{in("a", 1), in("b", 1), in("a", 2), in("b", 2), in("a", 3)} {
		_ = l.pickRequest()
		got := l.Pop()
		assert.True(t, got == want, "got %s, want %s", got, want)
		l.finishRequest(want)
	}
	assert.Equal(t, "lines are left", len(l.lines), 0)
}

// TestFreeWorkerIsFound checks that a worker that waits gets a request that was over the share of its
// namespace, as soon as another worker is free.
func TestFreeWorkerIsFound(t *testing.T) {
	t.Parallel()
	q := newTestQueue(4, clock.RealClock{})
	for n := range 4 {
		q.Add(in("a", n))
	}
	taken := make(chan reconcile.Request)
	for range 4 {
		go func() {
			r, _ := q.Get()
			taken <- r
		}()
	}
	first := <-taken
	<-taken
	<-taken
	q.Done(first)
	<-taken
	q.ShutDown()
}

// TestDelays checks, by the queue's clock, that a request which is added for later is due then, with its
// priority, and once.
func TestDelays(t *testing.T) {
	t.Parallel()
	c := testingclock.NewFakeClock(vmtest.T0)
	q := newTestQueue(1, c)
	defer q.ShutDown()
	q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute, Priority: new(PriorityUser)}, request(1))
	q.AddWithOpts(priorityqueue.AddOpts{After: time.Hour, Priority: new(PriorityUser)}, request(1))
	assert.Eventually(t, "the queue waits", func(testing.TB) error {
		return assert.ErrorUnless(c.HasWaiters(), "it does not")
	})
	assert.True(t, q.Len() == 0, "it is due at once")
	c.Step(time.Minute)
	r, priority, _ := q.GetWithPriority()
	assert.True(t, r == request(1) && priority == PriorityUser, "got %s with priority %d", r, priority)
}

// TestQueueIsAPriorityQueue checks that the wrapper still is one.
func TestQueueIsAPriorityQueue(t *testing.T) {
	t.Parallel()
	q := newTestQueue(4, clock.RealClock{})
	for n, priority := range []int{PriorityRoutine, PriorityDeletion, PriorityUser} {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request(n))
	}
	for _, want := range []int{1, 2, 0} {
		item, _, _ := q.GetWithPriority()
		assert.True(t, item == request(want), "got %s, want %s", item.Name, request(want).Name)
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
		assert.Equal(t, name+": priority", CreatePriority(tc.event), tc.want)
	}
}

// TestUpdatePriorityOfARestoredBinding checks that the annotation that
// DeletionBlocked requests enqueues the VM with the driver that it names.
func TestUpdatePriorityOfARestoredBinding(t *testing.T) {
	now := metav1.Time{Time: vmtest.T0}
	old := framework.NewVM("vm").UID("uid-1").Generation(2).Obj()
	old.Finalizers, old.DeletionTimestamp = []string{api.FinalizerServer}, &now
	old.Status.ObservedGeneration, old.Status.Driver = 1, "fake"
	vm := old.DeepCopy()
	vm.Annotations = map[string]string{api.AnnotationBound: "other/x"}
	_, ok := UpdatePriority(old, vm)
	assert.True(t, ok, "the binding that the message requests enqueues nothing for its driver")
}
