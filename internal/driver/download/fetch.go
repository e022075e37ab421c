// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// progressInterval is the minimum interval between two notifications of a fetch's progress.
const progressInterval = 2 * time.Second

// Fetch is a fetch that runs or waits for a slot. After losing its slot, it begins another run.
type Fetch struct {
	tracker     *Tracker
	key         string
	description string // for users
	startRun    func()
	done        chan struct{} // closed when the fetch has ended
	alive       chan struct{} // receives a value whenever the fetch makes progress
	received    atomic.Int64  // bytes of the content that this run has received

	// Tracker.mu guards the rest.

	status     string // the description with the progress
	notifiedAt time.Time
	cancel     context.CancelCauseFunc // ends the run
	isWaiting  bool                    // for a slot in lane
	arrival    uint64                  // a number by which fetches that wait are ordered
	hasSlot    bool
	lane       lane
	namespace  string    // the namespace whose share the slot counts against
	assignedAt time.Time // when the fetch got its slot in this lane
	losses     int       // how often the fetch has lost a slot in the slow lane
	begunAt    time.Time // when this run began
	total      int64     // bytes of the content; 0 if unknown
	reviewed   sample    // received bytes at the last review
}

// sample is the number of bytes that a fetch had received at a point in time.
type sample struct {
	at       time.Time
	received int64
}

var (
	errAbandoned = errors.New("no server is waiting for this fetch any more")
	errStalled   = errors.New("the fetch stalled")
	errTooLong   = errors.New("the fetch took too long")
	// errSlotLost ends a run. The fetch starts another run once it gets a slot again.
	errSlotLost = errors.New("waiting for other fetches to end")
)

func (t *Tracker) newFetch(ctx context.Context, key, description string, get func(context.Context, *Fetch) error) *Fetch {
	f := &Fetch{tracker: t, key: key, description: description, done: make(chan struct{}), alive: make(chan struct{}, 1)}
	f.startRun = func() {
		ctx, cancel := context.WithCancelCause(ctx)
		f.cancel, f.status, f.isWaiting, f.total = cancel, description, false, 0
		f.received.Store(0)
		f.begunAt = t.Clock.Now()
		f.reviewed = sample{at: f.begunAt}
		go f.runFetch(ctx, cancel, get)
	}
	return f
}

func (f *Fetch) runFetch(ctx context.Context, cancel context.CancelCauseFunc, get func(context.Context, *Fetch) error) {
	defer cancel(nil)
	go f.watchStall(ctx, cancel)
	err := get(ctx, f)
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errStalled):
		err = fmt.Errorf("%s: no progress for %v", f.currentStatus(), f.tracker.Stall)
	case errors.Is(cause, errTooLong):
		err = fmt.Errorf("%s: not complete after %v", f.currentStatus(), longestRun)
	}
	changed, isOver := f.tracker.endRun(f, err)
	f.tracker.Notify(changed...)
	if isOver {
		close(f.done)
	}
}

// endRun records the end of a run. It returns the servers whose state may have changed, and whether the whole
// fetch is over.
func (t *Tracker) endRun(f *Fetch, err error) (changed []types.UID, isOver bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.admitWaiting()
	if err != nil && !f.hasSlot && t.running[f.key] == f {
		t.enqueueFetch(f)
		return t.serversWaitingFor(f), false
	}
	t.slots.removeFetch(f)
	return t.recordResult(f, err), true
}

// watchStall cancels a run that makes no progress for too long, and reviews whether the fetch may keep its slot.
func (f *Fetch) watchStall(ctx context.Context, cancel context.CancelCauseFunc) {
	reviews := f.tracker.Clock.NewTimer(reviewInterval)
	defer reviews.Stop()
	stall := f.tracker.Clock.NewTimer(f.tracker.Stall)
	defer func() { stall.Stop() }()
	for {
		select {
		case <-f.alive:
			stall.Stop()
			stall = f.tracker.Clock.NewTimer(f.tracker.Stall) // not Reset: a FakeClock blocks on a timer that is reset after it fired
		case <-stall.C():
			cancel(errStalled)
			return
		case <-reviews.C():
			f.tracker.reviewFetch(f)
			reviews.Reset(reviewInterval)
		case <-ctx.Done():
			return
		}
	}
}

func (f *Fetch) currentStatus() string {
	f.tracker.mu.Lock()
	defer f.tracker.mu.Unlock()
	return f.status
}

// abandon ends a fetch that waits for a slot, or cancels its run. The caller holds Tracker.mu.
func (f *Fetch) abandon() {
	if f.isWaiting {
		close(f.done)
		return
	}
	f.cancel(errAbandoned)
}

// ResetStallTimer restarts the timer that cancels a fetch without progress.
func (f *Fetch) ResetStallTimer() {
	select {
	case f.alive <- struct{}{}:
	default:
	}
}

// Report records that the fetch makes progress, with a status for users. It notifies the waiting servers
// of a new status, at most once every progressInterval.
func (f *Fetch) Report(status string) {
	f.ResetStallTimer()
	f.tracker.Notify(f.tracker.recordProgress(f, status)...)
}

func (t *Tracker) recordProgress(f *Fetch, status string) []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.Clock.Now()
	if f.status == status || now.Sub(f.notifiedAt) < progressInterval {
		f.status = status
		return nil
	}
	f.status, f.notifiedAt = status, now
	return t.serversWaitingFor(f)
}

// Received adds to the number of received bytes of the content, without headers and other overhead.
func (f *Fetch) Received(bytes int64) { f.received.Add(bytes) }

// Expect records the size of the content in bytes before the content is received; 0 means unknown. It fails if the
// fetch has to wait for a slot in the large lane. The fetch's get function must then return, and is called again later.
func (f *Fetch) Expect(total int64) error {
	t := f.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	f.total = total
	isSmall := total > 0 && total < largeThreshold
	switch {
	case !f.hasSlot:
		return errSlotLost
	case f.lane != quick, isSmall:
		return nil
	}
	defer t.admitWaiting()
	if t.slots.hasSlotFor(large, f.namespace) {
		t.slots.assignSlot(f, large, f.namespace)
		return nil
	}
	t.slots.revokeSlot(f, large)
	return errSlotLost
}
