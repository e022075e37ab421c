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
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
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
	r := s.r // which a test may replace
	go func() { defer close(done); r.takeOver(t.Context(), s.q, s.elected) }()
	t.Cleanup(func() { <-done })
	return s
}

// addObject and deleteObject report an object to the handler as the cache does.
func (s *standby) addObject(b *framework.VMBuilder) *api.VirtualMachine {
	s.t.Helper()
	vm := b.Generation(1).Obj()
	assert.NoError(s.t, s.api.Create(s.t.Context(), vm.DeepCopy()))
	s.r.eventHandler().Create(s.t.Context(), event.TypedCreateEvent[*api.VirtualMachine]{Object: vm}, s.q)
	return vm
}

func (s *standby) deleteObject(vm *api.VirtualMachine) {
	s.r.eventHandler().Delete(s.t.Context(), event.TypedDeleteEvent[*api.VirtualMachine]{Object: vm}, s.q)
}

func (s *standby) lead() {
	s.epoch.Store(7)
	close(s.elected)
}

// takeRequests takes requests from the queue.
func (s *standby) takeRequests(count int) (names []string) {
	for range count {
		request, _ := s.q.Get()
		s.q.Done(request)
		names = append(names, request.Name)
	}
	return names
}

// TestTakeOverBeginsWithUnfinishedWork checks that a standby enqueues and stores
// nothing. After the election, what the objects and the engine show to be
// unfinished comes first.
func TestTakeOverBeginsWithUnfinishedWork(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	done := func(name string, change func(*api.VirtualMachineStatus)) *framework.VMBuilder {
		return framework.NewVM(name).Bound("fake/x").Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 }).Status(change)
	}
	nothing := func(*api.VirtualMachineStatus) {}
	for _, name := range []string{"a", "b"} {
		s.addObject(done(name, nothing))
	}
	s.addObject(done("crashed", vmtest.WithServer("id-1", driver.StateRunning)))
	s.addObject(done("failing", vmtest.WithOperation(api.OperationUpdate, time.Second, "")))
	s.addObject(framework.NewVM("new"))
	leaving := s.addObject(done("leaving", nothing))
	assert.NoError(t, s.api.Delete(t.Context(), leaving))
	gone := s.addObject(framework.NewVM("gone"))
	assert.NoError(t, s.api.Delete(t.Context(), gone))
	s.deleteObject(gone)
	s.addObject(framework.NewVM("other").Driver("docker"))
	n := s.q.Len()
	assert.Require(t, n == 0, "a standby has queued %d requests", n)

	s.lead()
	unfinished := s.takeRequests(3)
	want := []string{"leaving", "new", "failing"}
	assert.True(t, slices.Equal(unfinished, want), "the new leader begins with %v, want %v", unfinished, want)
	// Besides the tickers of the inventory, only it waits.
	waits := func() bool { return s.clock.Waiters() == 3 }
	s.eventually("it waits with the rest", waits)
	s.clock.Step(routineAfter - time.Millisecond)
	n = s.q.Len()
	assert.True(t, n == 0 && waits(), "%d more are enqueued before %s are over", n, routineAfter)
	s.clock.Step(time.Millisecond)
	s.eventually("it enqueues all VMs of its driver", func() bool { return s.q.Len() == 6 })
	rest := s.takeRequests(6)
	assert.True(t, rest[0] == "crashed" && slices.Contains(rest, "a") && slices.Contains(rest, "b") && !slices.Contains(rest, "other"), "later it enqueues %v", rest)
}

// TestElectedLeaderEnqueues checks that an elected standby enqueues like any leader.
func TestElectedLeaderEnqueues(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	s.lead()
	s.addObject(framework.NewVM("new"))
	got := s.takeRequests(1)
	assert.True(t, got[0] == "new", "it begins with %v", got)
	s.eventually("it waits with the rest", s.clock.HasWaiters)
	s.clock.Step(2 * routineAfter)
}

// countingClient counts the scans of the cache. Each continues when the test allows
// it.
type countingClient struct {
	client.Client
	scans   atomic.Int32
	running chan struct{}
	proceed chan struct{}
}

func (c *countingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.scans.Add(1)
	c.running <- struct{}{}
	<-c.proceed
	return c.Client.List(ctx, list, opts...)
}

// TestScansAreCombined checks that a server without a known owner may be any VirtualMachine's, and that
// any number of changes of such servers cause one scan at a time, and one more after the last of them.
func TestScansAreCombined(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	s.epoch.Store(7) // it leads, and only the test fills the queue
	for _, name := range []string{"a", "b"} {
		s.addObject(framework.NewVM(name))
	}
	s.takeRequests(2)
	c := &countingClient{Client: s.r.Client.Client, running: make(chan struct{}, 100), proceed: make(chan struct{})}
	s.r.Client.Client = c
	assert.NoError(t, s.r.followInventory(t.Context(), s.q))
	change := func(n int) {
		uid := types.UID(fmt.Sprintf("uid-%d", n))
		err := s.memory.Edit(uid, func(r *fake.Record) { r.ClusterID, r.State = "cluster", driver.StateRunning })
		assert.NoError(t, err)
		s.eventually("the inventory has it", func() bool { return s.inv.Get(uid).Answer == inventory.Present })
	}
	change(100)
	<-c.running
	for n := 101; n < 120; n++ {
		change(n)
	}
	assert.Equal(t, "scans run at once, want one", c.scans.Load(), 1)
	c.proceed <- struct{}{}
	<-c.running
	c.proceed <- struct{}{}
	s.eventually("the VirtualMachines are enqueued", func() bool { return s.q.Len() == 2 })
	if n := c.scans.Load(); n > 3 { // the last change may be reported shortly after the second scan began
		t.Errorf("%d scans for 20 changes, want two", n)
	}
	close(c.proceed)
}
