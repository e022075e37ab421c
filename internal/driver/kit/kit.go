// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kit has the parts that several drivers share.
//
// Start with NextStep in step.go, which decides what to do to a server. Calls gives each call a
// deadline and lets only one call at a time change a server, Each makes calls in parallel, and
// Watches has the queues of Driver.Watch.
package kit

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// DefaultCallTimeout limits a call whose context lacks a deadline.
const DefaultCallTimeout = 30 * time.Second

// Calls limits the calls of a driver by time, and those that change one server to one at a time.
type Calls struct {
	// Timeout limits a call whose context lacks a deadline.
	Timeout time.Duration
	// changing has, by UID, the servers that a call changes now. The channel is closed when the call
	// ends.
	changing driver.SyncMap[types.UID, chan struct{}]
}

// CheckContext returns an error if ctx is done, for calls that never wait and so would not notice.
func CheckContext(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the call to the driver was cut short: %w", context.Cause(ctx))
	}
	return nil
}

// Limit gives ctx a deadline if it lacks one.
func (c *Calls) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.Timeout)
}

// BeginChange checks the UID and waits until no other call of this process changes the server. The
// caller has to call end. The engine has to exclude concurrent changes by other processes.
func (c *Calls) BeginChange(ctx context.Context, uid types.UID) (limited context.Context, end func(), err error) {
	if err := driver.CheckUID(uid); err != nil {
		return nil, nil, err
	}
	ctx, cancel := c.Limit(ctx)
	done := make(chan struct{})
	for {
		otherDone, isChanging := c.changing.LoadOrStore(uid, done)
		if !isChanging {
			return ctx, func() { c.changing.Delete(uid); close(done); cancel() }, nil
		}
		select {
		case <-otherDone:
		case <-ctx.Done():
			cancel()
			return nil, nil, driver.Errorf(driver.ErrRetry, "another call for this server has not ended: %w", ctx.Err())
		}
	}
}

// Each calls do for each item, up to limit at a time, and returns the results in the order of
// the items. It continues even after ctx has ended, because a caller would take an item that was
// left out for a server that does not exist.
func Each[T, R any](ctx context.Context, limit int, items []T, do func(T) (R, error)) ([]R, []error) {
	results, errs := make([]R, len(items)), make([]error, len(items))
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), limit, len(items), func(n int) {
		results[n], errs[n] = do(items[n])
	})
	return results, errs
}

// Queue has the UIDs that one Watch has to send, each UID once. So it loses no UID and cannot grow
// beyond the number of servers.
type Queue = workqueue.Typed[types.UID]

// Watches are the open watches of a driver. The zero value has none.
type Watches struct {
	queues driver.SyncMap[*Queue, bool]
}

// Open opens a watch, which lasts until ctx ends.
func (w *Watches) Open(ctx context.Context) *Queue {
	queue := workqueue.NewTyped[types.UID]()
	w.queues.Store(queue, true)
	context.AfterFunc(ctx, func() { w.queues.Delete(queue); queue.ShutDown() })
	return queue
}

// Notify queues the UIDs in every open watch.
func (w *Watches) Notify(uids ...types.UID) {
	for _, queue := range w.queues.Keys() {
		for _, uid := range uids {
			queue.Add(uid)
		}
	}
}

// ShutDown ends all watches, whose callers have to list again.
func (w *Watches) ShutDown() {
	for _, queue := range w.queues.Keys() {
		queue.ShutDown()
	}
}

// Send sends the queued UIDs until the watch ends. It skips a UID if mustSend is not nil and returns
// false.
func Send(ctx context.Context, queue *Queue, uids chan<- types.UID, mustSend func(types.UID) bool) {
	for {
		uid, shutDown := queue.Get()
		if shutDown {
			return
		}
		queue.Done(uid) // before the UID is sent, so that an event in between queues it again
		if mustSend != nil && !mustSend(uid) {
			continue
		}
		select {
		case uids <- uid:
		case <-ctx.Done():
			return
		}
	}
}

// Pause waits for the duration d. If ctx ends first, it returns the cause.
func Pause(ctx context.Context, c clock.Clock, d time.Duration) error {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
