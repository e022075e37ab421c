// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/vmtest"
)

// TestTakeOverBeginsWithWhatIsUndone : what a standby was told long ago, and the
// leader has done, must not come before what nobody has done.
func TestTakeOverBeginsWithWhatIsUndone(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	epoch := uint64(0)
	g.r.Epoch = func() uint64 { return epoch }
	q := priorityqueue.New[reconcile.Request]("test")
	defer q.ShutDown()
	done := func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 }
	stuck := func(s *api.VirtualMachineStatus) { s.ObservedGeneration, s.Operation = 1, &api.Operation{} }
	for _, b := range []*vmtest.Builder{
		vmtest.VM("a").Status(done), vmtest.VM("b").Status(done), vmtest.VM("failing").Status(stuck), vmtest.VM("new"),
		vmtest.VM("leaving").Bound("fake/x").Status(done).Deleted(t0), vmtest.VM("other").Driver("docker"),
	} {
		vm := b.Generation(1).Obj()
		g.r.handler().Create(t.Context(), event.TypedCreateEvent[*api.VirtualMachine]{Object: vm}, q)
		deleted := vm.DeletionTimestamp != nil
		vm.DeletionTimestamp = nil
		if err := g.api.Create(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		if deleted {
			if err := g.api.Delete(t.Context(), vm); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := q.Len(); n != 0 {
		t.Errorf("a standby has queued %d requests", n)
	}

	epoch = 7
	elected := make(chan struct{})
	close(elected)
	g.r.takeOver(t.Context(), q, elected)
	var got []string
	for range 5 {
		request, _ := q.Get()
		got = append(got, request.Name)
	}
	if want := []string{"leaving", "new", "failing"}; !slices.Equal(got[:3], want) || q.Len() != 0 {
		t.Errorf("the new leader begins with %v and has %d left: want %v first, and nothing of another lane", got, q.Len(), want)
	}
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
