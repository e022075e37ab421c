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

// progressInterval is the least time between two notifications of a fetch's progress.
const progressInterval = 2 * time.Second

// Fetch is a fetch that runs or waits for a place.
type Fetch struct {
	tracker     *Tracker
	key         string
	description string // what it does, for people
	begin       func() // begins a run
	done        chan struct{}
	alive       chan struct{} // has a value after progress
	received    atomic.Int64  // bytes of the content that have come in this run

	// Tracker.mu guards the rest.

	status     string // the description with its progress
	notifiedAt time.Time
	cancel     context.CancelCauseFunc
	waits      bool   // for a place in its lane
	arrival    uint64 // since when it waits, as a number
	hasPlace   bool
	lane       lane
	namespace  string    // which its place is counted for
	placedAt   time.Time // when it got its place in this lane
	losses     int       // how often it has lost a place in the slow lane
	begunAt    time.Time // when this run began
	total      int64     // bytes of the content; 0 while that is not known
	reviewed   sample    // at the last review
}

// sample is how much a fetch had received at a time.
type sample struct {
	at       time.Time
	received int64
}

var (
	errAbandoned = errors.New("no server waits for it any more")
	errStalled   = errors.New("it stalled")
	errTooLong   = errors.New("it took too long")
	// errPlaceLost ends a run. The fetch begins again once it gets another place.
	errPlaceLost = errors.New("it waits for other fetches to end")
)

func (t *Tracker) newFetch(ctx context.Context, key, description string, get func(context.Context, *Fetch) error) *Fetch {
	f := &Fetch{tracker: t, key: key, description: description, done: make(chan struct{}), alive: make(chan struct{}, 1)}
	f.begin = func() {
		ctx, cancel := context.WithCancelCause(ctx)
		f.cancel, f.status, f.waits, f.total = cancel, description, false, 0
		f.received.Store(0)
		f.begunAt = t.Clock.Now()
		f.reviewed = sample{at: f.begunAt}
		go f.runFetch(ctx, cancel, get)
	}
	return f
}

// runFetch is one run of a fetch, which is the only one unless the fetch loses its place.
func (f *Fetch) runFetch(ctx context.Context, cancel context.CancelCauseFunc, get func(context.Context, *Fetch) error) {
	defer cancel(nil)
	go f.watchStall(ctx, cancel)
	err := get(ctx, f)
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errStalled):
		err = fmt.Errorf("%s: no progress for %v", f.currentStatus(), f.tracker.Stall)
	case errors.Is(cause, errTooLong):
		err = fmt.Errorf("%s: it has not ended within %v", f.currentStatus(), longestRun)
	}
	changed, isOver := f.tracker.endRun(f, err)
	f.tracker.Notify(changed...)
	if isOver {
		close(f.done)
	}
}

// endRun records the end of a run, and returns the servers whose state may have changed and whether the fetch
// has ended with it.
func (t *Tracker) endRun(f *Fetch, err error) (changed []types.UID, isOver bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.admitWaiting()
	if err != nil && !f.hasPlace && t.running[f.key] == f {
		t.enqueueFetch(f)
		return t.waitingServers(f), false
	}
	t.places.removeFetch(f)
	return t.recordResult(f, err), true
}

// watchStall cancels a run that makes no progress for too long, and reviews the fetch's place.
func (f *Fetch) watchStall(ctx context.Context, cancel context.CancelCauseFunc) {
	reviews := f.tracker.Clock.NewTimer(reviewInterval)
	defer reviews.Stop()
	stall := f.tracker.Clock.NewTimer(f.tracker.Stall)
	defer stall.Stop()
	for {
		select {
		case <-f.alive:
			stall.Reset(f.tracker.Stall)
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

// abandon ends a fetch: at once if it waits for a place, or else once its run has ended. The caller holds Tracker.mu.
func (f *Fetch) abandon() {
	if f.waits {
		close(f.done)
		return
	}
	f.cancel(errAbandoned)
}

// ResetStallTimer restarts the time after which a fetch without progress is ended.
func (f *Fetch) ResetStallTimer() {
	select {
	case f.alive <- struct{}{}:
	default:
	}
}

// Report records that the fetch makes progress, and its status, which is for people.
// The waiting servers are notified of changes from time to time.
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
	return t.waitingServers(f)
}

// Received records that so many more bytes of the content have come. What comes beside the content does not
// count.
func (f *Fetch) Received(bytes int64) { f.received.Add(bytes) }

// Expect records how many bytes the content has, before they come; 0 means that this is not known. It fails if the
// fetch has to wait for a place among large ones: get has to end then, and is called again.
func (f *Fetch) Expect(total int64) error {
	t := f.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	f.total = total
	isSmall := total > 0 && total < largeFrom
	switch {
	case !f.hasPlace:
		return errPlaceLost
	case f.lane != quick, isSmall:
		return nil
	}
	defer t.admitWaiting()
	if t.places.hasPlaceFor(large, f.namespace) {
		t.places.placeFetch(f, large, f.namespace)
		return nil
	}
	t.places.displaceFetch(f, large)
	return errPlaceLost
}
