// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"cloudnative.tw/drover/test/vmtest"
)

// sending is a sender whose API does as create says, which gets the number of
// the call.
func sending(t *testing.T, clk clock.WithTicker, create func(call int) error) (*sender, client.Client, func()) {
	t.Helper()
	g := &rig{t: t}
	var calls, under atomic.Int32
	c := interceptor.NewClient(clientfake.NewClientBuilder().WithScheme(g.newAPI().Scheme()).Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if under.Add(1) > 1 {
				t.Error("two events are under way at a time")
			}
			defer under.Add(-1)
			if err := create(int(calls.Add(1))); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
	})
	s := newSender("drover", c, clk, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Start(ctx) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return s, c, stop
}

func tell(s *sender, n int) {
	vm := vmtest.VM(fmt.Sprintf("vm-%03d", n)).UID("uid-1").Obj()
	s.Eventf(vm, nil, corev1.EventTypeNormal, "Created", "Create", "server %d", n)
}

func sent(t *testing.T, c client.Client) []eventsv1.Event {
	t.Helper()
	var all eventsv1.EventList
	if err := c.List(context.WithoutCancel(t.Context()), &all); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

// TestEventsAreSentOneByOne : none is lost, those told of just before the end
// included.
func TestEventsAreSentOneByOne(t *testing.T) {
	s, c, stop := sending(t, clock.RealClock{}, func(int) error { return nil })
	for n := range 50 {
		tell(s, n)
	}
	stop()
	got := sent(t, c)
	if len(got) != 50 {
		t.Fatalf("%d events, want 50", len(got))
	}
	e := got[0]
	if e.Regarding.Kind != "VirtualMachine" || e.Regarding.UID != "uid-1" || e.Note != "server 0" || e.ReportingController != "drover" || e.Action != "Create" {
		t.Errorf("the first is %+v", e)
	}
}

// TestEventsOutliveAnOutage : while the API cannot be reached an event is tried
// again; one that the API refuses holds up no other.
func TestEventsOutliveAnOutage(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("the namespace goes"))
	clk := testingclock.NewFakeClock(t0)
	s, c, _ := sending(t, clk, func(call int) error {
		switch call {
		case 1, 2:
			return errors.New("connection refused")
		case 3:
			return refused
		}
		return nil
	})
	tell(s, 1) // two tries fail, the third is refused
	tell(s, 2)
	g := &rig{t: t}
	g.eventually("the second event is sent", func() bool {
		if clk.HasWaiters() {
			clk.Step(eventPause)
		}
		return len(sent(t, c)) == 1
	})
	if got := sent(t, c)[0].Note; got != "server 2" {
		t.Errorf("%q was sent, want server 2", got)
	}
}

// TestEventsAreBounded : nobody waits for room.
func TestEventsAreBounded(t *testing.T) {
	g := &rig{t: t}
	s := newSender("drover", g.newAPI(), clock.RealClock{}, logr.Discard())
	begin := time.Now()
	for n := range maxQueued + 10 {
		tell(s, n)
	}
	if len(s.queue) != maxQueued {
		t.Errorf("%d wait after %s, want %d", len(s.queue), time.Since(begin), maxQueued)
	}
}
