// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/vmtest"
)

// standby is a replica with a work queue, which it fills once it leads.
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

// created and deleted report an object to the handler as the cache does.
func (s *standby) created(b *vmtest.Builder) *api.VirtualMachine {
	s.t.Helper()
	vm := b.Generation(1).Obj()
	if err := s.api.Create(s.t.Context(), vm.DeepCopy()); err != nil {
		s.t.Fatal(err)
	}
	s.r.eventHandler().Create(s.t.Context(), event.TypedCreateEvent[*api.VirtualMachine]{Object: vm}, s.q)
	return vm
}

func (s *standby) deleted(vm *api.VirtualMachine) {
	s.r.eventHandler().Delete(s.t.Context(), event.TypedDeleteEvent[*api.VirtualMachine]{Object: vm}, s.q)
}

func (s *standby) lead() {
	s.epoch.Store(7)
	close(s.elected)
}

// next takes requests from the queue.
func (s *standby) next(count int) (names []string) {
	for range count {
		request, _ := s.q.Get()
		s.q.Done(request)
		names = append(names, request.Name)
	}
	return names
}

// TestTakeOverBeginsWithWhatIsUndone checks that a standby enqueues and keeps
// nothing. After the election, what the objects and the engine show to be
// unfinished comes first.
func TestTakeOverBeginsWithWhatIsUndone(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	done := func(name string, change func(*api.VirtualMachineStatus)) *vmtest.Builder {
		return vmtest.VM(name).Bound("fake/x").Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 }).Status(change)
	}
	nothing := func(*api.VirtualMachineStatus) {}
	for _, name := range []string{"a", "b"} {
		s.created(done(name, nothing))
	}
	s.created(done("crashed", policytest.WithServer("id-1", driver.StateRunning)))
	s.created(done("failing", policytest.WithOperation(api.OperationUpdate, time.Second, "")))
	s.created(vmtest.VM("new"))
	leaving := s.created(done("leaving", nothing))
	if err := s.api.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}
	gone := s.created(vmtest.VM("gone"))
	if err := s.api.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	s.deleted(gone)
	s.created(vmtest.VM("other").Driver("docker"))
	if n := s.q.Len(); n != 0 {
		t.Fatalf("a standby has queued %d requests", n)
	}

	s.lead()
	undone := s.next(3)
	if want := []string{"leaving", "new", "failing"}; !slices.Equal(undone, want) {
		t.Errorf("the new leader begins with %v, want %v", undone, want)
	}
	// Besides the tickers of the inventory, only it waits.
	waits := func() bool { return s.clock.Waiters() == 3 }
	s.eventually("it waits to look at the rest", waits)
	s.clock.Step(routineAfter - time.Millisecond)
	if n := s.q.Len(); n != 0 || !waits() {
		t.Errorf("%d more are looked at before %s are over", n, routineAfter)
	}
	s.clock.Step(time.Millisecond)
	s.eventually("it looks at all of its lane", func() bool { return s.q.Len() == 6 })
	if rest := s.next(6); rest[0] != "crashed" || !slices.Contains(rest, "a") || !slices.Contains(rest, "b") || slices.Contains(rest, "other") {
		t.Errorf("later it looks at %v", rest)
	}
}

// TestLeaderQueuesAtOnce checks that an elected standby enqueues like any leader.
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

// TestAServerOfNobodyKnown checks that a server without a known owner may be any
// VirtualMachine's.
func TestAServerOfNobodyKnown(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	for _, name := range []string{"a", "b"} {
		s.created(vmtest.VM(name))
	}
	s.lead()
	s.next(2)
	if err := s.r.followInventory(t.Context(), s.q); err != nil {
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

// scanned counts the scans of the cache. Each continues when the test allows it.
type scanned struct {
	client.Client
	scans   atomic.Int32
	running chan struct{}
	goOn    chan struct{}
}

func (c *scanned) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.scans.Add(1)
	c.running <- struct{}{}
	<-c.goOn
	return c.Client.List(ctx, list, opts...)
}

// TestScansAddUp checks that any number of changes without a known VirtualMachine
// cause one scan at a time, and one more after the last of them.
func TestScansAddUp(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	s.epoch.Store(7) // it leads, and only the test fills the queue
	s.created(vmtest.VM("a"))
	s.next(1)
	c := &scanned{Client: s.r.Client, running: make(chan struct{}, 100), goOn: make(chan struct{})}
	s.r.Client = c
	if err := s.r.followInventory(t.Context(), s.q); err != nil {
		t.Fatal(err)
	}
	change := func(n int) {
		err := s.memory.Edit(types.UID(fmt.Sprintf("uid-%d", n)), func(r *fake.Record) { r.ClusterID, r.State = "cluster", driver.StateRunning })
		if err != nil {
			t.Fatal(err)
		}
		s.eventually("the inventory has it", func() bool {
			return s.inv.Get(types.UID(fmt.Sprintf("uid-%d", n))).Answer == inventory.Present
		})
	}
	change(100)
	<-c.running
	for n := 101; n < 120; n++ {
		change(n)
	}
	if n := c.scans.Load(); n != 1 {
		t.Errorf("%d scans run at once, want one", n)
	}
	c.goOn <- struct{}{}
	<-c.running
	c.goOn <- struct{}{}
	s.eventually("the VirtualMachine is looked at", func() bool { return s.q.Len() == 1 })
	if n := c.scans.Load(); n > 3 { // the last change may be reported shortly after the second scan began
		t.Errorf("%d scans for 20 changes, want two", n)
	}
	close(c.goOn)
}
