// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package download tracks what drivers fetch in the background. Each thing is
// fetched once for all servers that wait for it. A fetch only fetches: the next call
// for a waiting server does the rest.
//
// Start with Tracker.Outcome and Tracker.Begin.
package download

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// AtOnce is how many fetches of a driver may run at a time.
const AtOnce = 4

// tellProgress is the least time between two notifications of a fetch's progress.
const tellProgress = 2 * time.Second

// Tracker records the fetches under way and the servers that wait for them. It is
// safe for concurrent use.
type Tracker struct {
	Clock clock.WithTicker
	// Stall is how long a fetch may go without any progress.
	Stall time.Duration
	// Tell is called with the UIDs of servers to look at again.
	Tell func(...types.UID)
	// AtOnce is how many fetches run at a time; one namespace may have one fewer. Zero
	// means any number. The others wait for their turn.
	AtOnce int

	mu      sync.Mutex
	running map[string]*Fetch // by key, including those that wait for their turn
	queue   []*Fetch          // those that wait for their turn
	active  map[string]int    // by namespace, how many have begun
	servers map[types.UID]*server
}

// server is a server that waits, or whose result was not reported to it yet.
type server struct {
	namespace, name string
	claims          map[string]*claim // by key
}

// claim is a server's interest in one thing. It outlives the fetch, so that the
// next call gets the result and Pending continues to show a failure.
type claim struct {
	fetch *Fetch // nil when it is over
	err   error
	told  bool
}

// Fetch is a fetch that is under way.
type Fetch struct {
	book      *Tracker
	key       string
	namespace string // of the server that it was begun for
	what      string // what it does, for people
	doing     string // the same with its progress; guarded by Tracker.mu
	told      time.Time
	cancel    context.CancelCauseFunc
	turn      chan struct{} // closed when it may begin
	done      chan struct{}
	alive     chan struct{} // has a value after progress
}

// Outcome is the state of a fetch that a server waits for.
type Outcome int

// The outcomes.
const (
	// None : the server does not wait, or the failure was reported to it already.
	None Outcome = iota
	// Running : the fetch is under way.
	Running
	// Fetched : the fetch ended well.
	Fetched
)

// Outcome reports the state of the fetch of key for a server. A failure is returned
// once; it is ErrRetry with ReasonImageUnavailable, or ErrInvalid.
func (b *Tracker) Outcome(uid types.UID, key string) (Outcome, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claim(uid, key)
	switch {
	case c == nil, c.told:
		return None, nil
	case c.fetch != nil:
		return Running, nil
	case c.err == nil:
		return Fetched, nil
	}
	c.told = true
	return None, c.err
}

func (b *Tracker) claim(uid types.UID, key string) *claim {
	if s := b.servers[uid]; s != nil {
		return s.claims[key]
	}
	return nil
}

// Begin registers a server as waiting for the fetch of key, and starts that with get
// if there is none. The fetch outlives the call that began it; it runs until it ends,
// stalls or no server waits for it. doing is for people, such as "pulling nginx".
func (b *Tracker) Begin(ctx context.Context, spec driver.ServerSpec, key, doing string, get func(context.Context, *Fetch) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == nil {
		b.running, b.servers, b.active = map[string]*Fetch{}, map[types.UID]*server{}, map[string]int{}
	}
	f := b.running[key]
	if f == nil {
		f = &Fetch{
			book: b, key: key, namespace: spec.Namespace, what: doing, doing: doing + ": it waits for other fetches to end",
			turn: make(chan struct{}), done: make(chan struct{}), alive: make(chan struct{}, 1),
		}
		ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		b.running[key] = f
		b.queue = append(b.queue, f)
		b.admit()
		go f.run(ctx, get)
	}
	s := b.servers[spec.UID]
	if s == nil {
		s = &server{namespace: spec.Namespace, name: spec.Name, claims: map[string]*claim{}}
		b.servers[spec.UID] = s
	}
	s.claims[key] = &claim{fetch: f}
}

var (
	errAbandoned = errors.New("nobody waits for it any more")
	errStalled   = errors.New("it stalled")
)

func (f *Fetch) run(ctx context.Context, get func(context.Context, *Fetch) error) {
	defer close(f.done)
	defer f.cancel(nil)
	err := f.runInTurn(ctx, get)
	f.book.Tell(f.book.end(f, err)...)
}

func (f *Fetch) runInTurn(ctx context.Context, get func(context.Context, *Fetch) error) error {
	defer f.book.leave(f)
	select {
	case <-f.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	go f.cancelStalled(ctx)
	err := get(ctx, f)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		err = fmt.Errorf("%s: no progress for %v", f.doingNow(), f.book.Stall)
	}
	return err
}

// cancelStalled cancels a fetch that made no progress for too long.
func (f *Fetch) cancelStalled(ctx context.Context) {
	timer := f.book.Clock.NewTimer(f.book.Stall)
	defer timer.Stop()
	for {
		select {
		case <-f.alive:
			timer.Reset(f.book.Stall)
		case <-timer.C():
			f.cancel(errStalled)
			return
		case <-ctx.Done():
			return
		}
	}
}

func (f *Fetch) doingNow() string {
	f.book.mu.Lock()
	defer f.book.mu.Unlock()
	return f.doing
}

// Alive records that the fetch makes progress.
func (f *Fetch) Alive() {
	select {
	case f.alive <- struct{}{}:
	default:
	}
}

// Progress records that the fetch makes progress, and what it is doing now. The
// waiting servers are notified of changes from time to time.
func (f *Fetch) Progress(doing string) {
	f.Alive()
	f.book.Tell(f.book.progressed(f, doing)...)
}

func (b *Tracker) progressed(f *Fetch, doing string) []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.Clock.Now()
	if f.doing == doing || now.Sub(f.told) < tellProgress {
		f.doing = doing
		return nil
	}
	f.doing, f.told = doing, now
	return b.waiting(f)
}

// end records the result of a fetch for all servers that waited, and returns them.
// An error becomes ErrRetry, even if the engine was lost meanwhile, except that
// ErrInvalid is preserved: only another spec helps there.
func (b *Tracker) end(f *Fetch, err error) []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrInvalid):
		err = driver.Errorf(driver.ErrInvalid, "%s", err.Error())
	default:
		err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "%s", err.Error()))
	}
	b.forget(f)
	waiting := b.waiting(f)
	for _, uid := range waiting {
		c := b.servers[uid].claims[f.key]
		c.fetch, c.err = nil, err
	}
	return waiting
}

// The methods from here to drop require the lock to be held.

func (b *Tracker) waiting(f *Fetch) []types.UID {
	var all []types.UID
	for uid, s := range b.servers {
		if c := s.claims[f.key]; c != nil && c.fetch == f {
			all = append(all, uid)
		}
	}
	return all
}

// forget removes a fetch that was cancelled or has ended, so that no server can join it.
func (b *Tracker) forget(f *Fetch) {
	if b.running[f.key] == f {
		delete(b.running, f.key)
	}
}

// drop ends a server's interest in all things but those of the keys in but. It
// cancels, and returns, the fetches that no other server waits for.
func (b *Tracker) drop(uid types.UID, but []string) []*Fetch {
	s := b.servers[uid]
	if s == nil {
		return nil
	}
	var cancelled []*Fetch
	for key, c := range s.claims {
		if slices.Contains(but, key) {
			continue
		}
		delete(s.claims, key)
		if c.fetch != nil && len(b.waiting(c.fetch)) == 0 {
			b.forget(c.fetch)
			c.fetch.cancel(errAbandoned)
			cancelled = append(cancelled, c.fetch)
		}
	}
	if len(s.claims) == 0 {
		delete(b.servers, uid)
	}
	return cancelled
}

// Keep ends a server's interest in all things but those of keys.
func (b *Tracker) Keep(uid types.UID, keys ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(uid, keys)
}

// Abandon ends a server's interest in everything, and waits for the end of fetches
// that no other server waits for. It returns ErrRetry if ctx ends first.
func (b *Tracker) Abandon(ctx context.Context, uid types.UID) error {
	b.mu.Lock()
	dropped := b.drop(uid, nil)
	b.mu.Unlock()
	return join(ctx, dropped)
}

// join waits for the end of cancelled fetches.
func join(ctx context.Context, cancelled []*Fetch) error {
	for _, f := range cancelled {
		select {
		case <-f.done:
		case <-ctx.Done():
			return driver.Errorf(driver.ErrRetry, "%s: it was cancelled and does not end: %w", f.doingNow(), ctx.Err())
		}
	}
	return nil
}

// Close cancels all fetches and waits for their end. It returns ErrRetry if ctx ends
// first.
func (b *Tracker) Close(ctx context.Context) error {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.running))
	b.mu.Unlock()
	for _, f := range all {
		f.cancel(errAbandoned)
	}
	return join(ctx, all)
}

// Progress describes the fetches that a server waits for, or is empty.
func (b *Tracker) Progress(uid types.UID) string { return b.Server(uid).Progress }

// Server returns the server in StatePending, with nothing but its fetches.
func (b *Tracker) Server(uid types.UID) driver.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending(uid)
}

func (b *Tracker) pending(uid types.UID) driver.Server {
	out := driver.Server{UID: uid, State: driver.StatePending}
	s := b.servers[uid]
	if s == nil {
		return out
	}
	out.Namespace, out.Name = s.namespace, s.name
	for _, c := range s.claims {
		if c.fetch != nil {
			out.Progress = cmp.Or(out.Progress, c.fetch.doing)
		}
		out.Err = cmp.Or(out.Err, c.err)
	}
	return out
}

// Pending returns the servers that wait, or that have an unreported result: all, or
// those with the given UIDs.
func (b *Tracker) Pending(uids ...types.UID) []driver.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []driver.Server
	for uid := range b.servers {
		if len(uids) == 0 || slices.Contains(uids, uid) {
			all = append(all, b.pending(uid))
		}
	}
	return all
}
