// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

// engineClient is a process's driver: the fake driver, whose calls wait at the gate.
type engineClient struct {
	process *process
	// driver is the engine's driver, and other that of an engine that may replace it for a while.
	driver, other *fake.Driver
}

// connected returns the driver of the engine that answers now.
func (e engineClient) connected() *fake.Driver {
	if e.process.environment.exchangedAt.IsZero() {
		return e.driver
	}
	return e.other
}

var (
	_ driver.Driver     = engineClient{}
	_ driver.Identifier = engineClient{}
)

func engineCall[T any](ctx context.Context, e engineClient, k kind, name string, do func(context.Context) (T, error)) (T, error) {
	return call(ctx, e.process, k, e.process.name+" engine "+name, func() (T, error) { return do(context.WithoutCancel(ctx)) })
}

// Ensure implements driver.Driver.
func (e engineClient) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	e.process.environment.judge.callBegins(e.process)
	began := time.Now()
	name := fmt.Sprintf("Ensure %s %s", spec.Name, spec.Power)
	if spec.RestartRun != "" {
		name += " restart"
	}
	return engineCall(ctx, e, kindEngineWrite, name, func(ctx context.Context) (driver.Server, error) {
		return record(e.process, "Ensure", spec.Target, began, func() (driver.Server, error) { return e.connected().Ensure(ctx, spec) })
	})
}

// Delete implements driver.Driver.
func (e engineClient) Delete(ctx context.Context, t driver.Target, retain bool) error {
	e.process.environment.judge.callBegins(e.process)
	began := time.Now()
	name := fmt.Sprintf("Delete %s retain %v", shortUID(t.UID), retain)
	_, err := engineCall(ctx, e, kindEngineWrite, name, func(ctx context.Context) (driver.Server, error) {
		return record(e.process, "Delete", t, began, func() (driver.Server, error) { return driver.Server{}, e.connected().Delete(ctx, t, retain) })
	})
	return err
}

// record reports the effect of a call to the judge.
func record(p *process, method string, t driver.Target, began time.Time, do func() (driver.Server, error)) (driver.Server, error) {
	before, exchanged := p.environment.memory.Records(), !p.environment.exchangedAt.IsZero()
	server, err := do()
	if exchanged {
		p.environment.judge.otherCalled(p, began)
		return server, err
	}
	p.environment.judge.engineCalled(p, method, t, before, err)
	return server, err
}

// List implements driver.Driver.
func (e engineClient) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	var names []string
	for _, uid := range uids {
		names = append(names, shortUID(uid))
	}
	slices.Sort(names)
	name := "List " + strings.Join(names, ",") + callerOf("(*Sweep)", "GetLive")
	return engineCall(ctx, e, kindEngineRead, name, func(ctx context.Context) ([]driver.Server, error) {
		servers, err := e.connected().List(ctx, uids...)
		slices.SortFunc(servers, func(a, b driver.Server) int { return cmp.Or(cmp.Compare(a.UID, b.UID), cmp.Compare(a.ID, b.ID)) })
		return servers, err
	})
}

// Usage implements driver.Driver.
func (e engineClient) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	return engineCall(ctx, e, kindEngineRead, "Usage", func(ctx context.Context) ([]driver.Usage, error) {
		all, err := e.connected().Usage(ctx, uids...)
		slices.SortFunc(all, func(a, b driver.Usage) int { return cmp.Compare(a.UID, b.UID) })
		return all, err
	})
}

// EngineID implements driver.Identifier.
func (e engineClient) EngineID(ctx context.Context) (string, error) {
	var asked atomic.Bool
	defer func() {
		if asked.Load() {
			e.process.otherIDs.Add(-1)
		}
	}()
	return engineCall(ctx, e, kindEngineRead, "EngineID"+callerOf("GetLive"), func(ctx context.Context) (string, error) {
		connected := e.connected()
		if connected == e.other {
			asked.Store(true)
			e.process.otherIDs.Add(1)
		}
		return connected.EngineID(ctx)
	})
}

// Watch implements driver.Driver. Each event of the engine becomes a message, which is
// delivered when the scheduler decides and the inventory waits for it.
func (e engineClient) Watch(ctx context.Context) (<-chan types.UID, error) {
	events, err := engineCall(ctx, e, kindEngineRead, "Watch", func(context.Context) (<-chan types.UID, error) {
		return e.connected().Watch(ctx)
	})
	if err != nil {
		return nil, err
	}
	s := &stream{process: e.process, ctx: ctx, out: make(chan types.UID), changed: map[types.UID]bool{}}
	e.process.environment.gate.mu.Lock()
	e.process.environment.streams = append(e.process.environment.streams, s)
	e.process.environment.gate.mu.Unlock()
	go s.receive(events)
	return s.out, nil
}

// stream holds the events of an engine for one inventory.
type stream struct {
	process *process
	ctx     context.Context
	out     chan types.UID

	mu      sync.Mutex
	changed map[types.UID]bool
	ended   bool // the engine has ended the stream
	over    bool // the inventory has been told so
	// last is how many events were pending when the delay was determined.
	last     int
	notUntil time.Time
}

func (s *stream) receive(events <-chan types.UID) {
	withLock := func(change func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		change()
	}
	for uid := range events {
		withLock(func() { s.changed[uid] = true })
		s.process.environment.gate.wake()
	}
	withLock(func() { s.ended = true })
	s.process.environment.gate.wake()
}

// messages returns the messages that may be delivered next.
func (s *stream) messages() (ready []*operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid := range s.changed {
		ready = append(ready, &operation{name: fmt.Sprintf("%s engine event %s", s.process.name, shortUID(uid)), owner: s.process, run: func() bool { return s.deliver(uid) }})
	}
	if s.ended {
		ready = append(ready, &operation{name: s.process.name + " engine events end", owner: s.process, run: func() bool {
			s.over = true
			close(s.out)
			return true
		}})
	}
	return ready
}

// pending returns the number of events that were not delivered yet.
func (s *stream) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.changed)
}

func (s *stream) deliver(uid types.UID) bool {
	select {
	case s.out <- uid:
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.changed, uid)
		return true
	default:
		return false
	}
}

// callerOf returns which of the functions is on the stack, to distinguish calls that are
// otherwise equal.
func callerOf(functions ...string) string {
	var pcs [24]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		for _, f := range functions {
			if strings.Contains(frame.Function, f) {
				return " by " + f
			}
		}
		if !more {
			return ""
		}
	}
}

// shortUID returns the part of a UID in which the UIDs of a schedule differ.
func shortUID(uid types.UID) string { return strings.TrimLeft(string(uid[:min(len(uid), 8)]), "0") }
