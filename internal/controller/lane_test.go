// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/vmtest"
)

// standby is a replica with a queue, which it fills once it leads.
type standby struct {
	*rig
	epoch   atomic.Uint64
	elected chan struct{}
	q       priorityqueue.PriorityQueue[reconcile.Request]
}

func newStandby(t *testing.T) *standby {
	s := &standby{rig: newRig(t, fake.Options{}), elected: make(chan struct{}), q: priorityqueue.New[reconcile.Request]("test")}
	t.Cleanup(s.q.ShutDown)
	s.r.Epoch = s.epoch.Load
	done := make(chan struct{})
	go func() { defer close(done); s.r.takeOver(t.Context(), s.q, s.elected) }()
	t.Cleanup(func() { <-done })
	return s
}

// created, changed and deleted tell of an object as the cache does.
func (s *standby) created(b *vmtest.Builder) *api.VirtualMachine {
	s.t.Helper()
	vm := b.Generation(1).Obj()
	if err := s.api.Create(s.t.Context(), vm.DeepCopy()); err != nil {
		s.t.Fatal(err)
	}
	s.r.handler().Create(s.t.Context(), event.TypedCreateEvent[*api.VirtualMachine]{Object: vm}, s.q)
	return vm
}

func (s *standby) changed(old *api.VirtualMachine, change func(*api.VirtualMachine)) *api.VirtualMachine {
	vm := old.DeepCopy()
	change(vm)
	s.r.handler().Update(s.t.Context(), event.TypedUpdateEvent[*api.VirtualMachine]{ObjectOld: old, ObjectNew: vm}, s.q)
	return vm
}

func (s *standby) deleted(vm *api.VirtualMachine) {
	s.r.handler().Delete(s.t.Context(), event.TypedDeleteEvent[*api.VirtualMachine]{Object: vm}, s.q)
}

func (s *standby) lead() {
	s.epoch.Store(7)
	close(s.elected)
}

// next takes requests out of the queue.
func (s *standby) next(count int) (names []string) {
	for range count {
		request, _ := s.q.Get()
		s.q.Done(request)
		names = append(names, request.Name)
	}
	return names
}

func observed1(vm *api.VirtualMachine) { vm.Status.ObservedGeneration = 1 }

// TestTakeOverBeginsWithWhatIsUndone : what a standby was told long ago, and
// the leader has done, comes after what nobody has done.
func TestTakeOverBeginsWithWhatIsUndone(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	for _, name := range []string{"a", "b", "crashed"} {
		s.changed(s.created(vmtest.VM(name)), observed1)
	}
	failing := s.changed(s.created(vmtest.VM("failing")), observed1)
	s.changed(failing, func(vm *api.VirtualMachine) { vm.Status.Operation = &api.Operation{} })
	raise := func(name string, routine bool, ago time.Duration) {
		vm := types.NamespacedName{Namespace: "default", Name: name}
		s.r.undone.raise(inventory.Change{VM: vm, Routine: routine}, s.clock.Now().Add(-ago))
	}
	raise("crashed", false, seenToWithin)
	raise("a", true, 0)
	raise("b", false, seenToWithin+1)
	s.created(vmtest.VM("new"))
	leaving := s.changed(s.created(vmtest.VM("leaving").Bound("fake/x")), observed1)
	s.changed(leaving, func(vm *api.VirtualMachine) { vm.DeletionTimestamp = &metav1.Time{Time: t0} })
	s.deleted(s.created(vmtest.VM("gone")))
	s.created(vmtest.VM("other").Driver("docker"))
	if n := s.q.Len(); n != 0 {
		t.Fatalf("a standby has queued %d requests", n)
	}

	s.lead()
	undone := s.next(4)
	slices.Sort(undone[2:])
	if want := []string{"leaving", "new", "crashed", "failing"}; !slices.Equal(undone, want) {
		t.Errorf("the new leader begins with %v, want %v", undone, want)
	}
	if n := s.q.Len(); n != 0 {
		t.Errorf("%d more are looked at at once", n)
	}
	s.eventually("it waits to look at the rest", s.clock.HasWaiters)
	s.clock.Step(2 * routineAfter)
	s.eventually("it looks at all of its lane", func() bool { return s.q.Len() == 7 })
	if rest := s.next(7); !slices.Contains(rest, "a") || !slices.Contains(rest, "b") || slices.Contains(rest, "other") {
		t.Errorf("later it looks at %v", rest)
	}
}

// TestLeaderQueuesAtOnce : a standby that was elected is an ordinary leader.
func TestLeaderQueuesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	s.lead()
	s.created(vmtest.VM("new"))
	if got := s.next(1); got[0] != "new" {
		t.Errorf("it begins with %v", got)
	}
	s.eventually("it waits to look at the rest", s.clock.HasWaiters)
	s.clock.Step(2 * routineAfter)
}

// TestWhatIsSeenFirst : the priorities of objects that a leader did not know.
func TestWhatIsSeenFirst(t *testing.T) {
	t.Parallel()
	done := vmtest.VM("done").Generation(1).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })
	tests := map[string]struct {
		event event.TypedCreateEvent[*api.VirtualMachine]
		want  int
	}{
		"there at the start and done": {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.Obj(), IsInInitialList: true}, prioRoutine},
		"there at the start and new":  {event.TypedCreateEvent[*api.VirtualMachine]{Object: vmtest.VM("new").Generation(1).Obj(), IsInInitialList: true}, prioUser},
		"created":                     {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.Obj()}, prioUser},
		"being deleted":               {event.TypedCreateEvent[*api.VirtualMachine]{Object: done.Deleted(time.Now()).Obj(), IsInInitialList: true}, prioDeletion},
	}
	for name, tc := range tests {
		if got := startPriority(tc.event); got != tc.want {
			t.Errorf("%s: priority %d, want %d", name, got, tc.want)
		}
	}
}

// TestAServerOfNobodyKnown may be any VirtualMachine's.
func TestAServerOfNobodyKnown(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	s.lead()
	for _, name := range []string{"a", "b"} {
		s.created(vmtest.VM(name))
	}
	s.next(2)
	if err := s.r.follow(t.Context(), s.q); err != nil {
		t.Fatal(err)
	}
	err := s.memory.Edit("uid-9", func(r *fake.Record) { r.ClusterID, r.State = "cluster", driver.StateRunning })
	if err != nil {
		t.Fatal(err)
	}
	s.eventually("all are looked at", func() bool { return s.q.Len() == 2 })
	names := s.next(2)
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("it looks at %v", names)
	}
}
