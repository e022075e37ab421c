// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package download keeps the books of what drivers fetch in the background, each
// thing once for all servers that wait for it. A fetch only fetches: what follows
// is up to the next call for a server that waits.
//
// Start with Book.Outcome and Book.Begin.
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

// AtOnce is how many fetches a driver has under way at a time.
const AtOnce = 4

// tellProgress is how often a fetch's progress is worth another look.
const tellProgress = 2 * time.Second

// Tracker knows the fetches under way and who waits for them. It is safe for
// concurrent use.
type Tracker struct {
	Clock clock.WithTicker
	// Stall is how long a fetch may go without any progress.
	Stall time.Duration
	// Tell is called with servers that are worth another look.
	Tell func(...types.UID)
	// AtOnce is how many fetches are under way at a time, of one namespace one less;
	// zero means any number. Others wait for their turn.
	AtOnce int

	mu      sync.Mutex
	running map[string]*Fetch // by key, those included that wait for their turn
	queue   []*Fetch          // which wait for their turn
	active  map[string]int    // by namespace, how many have begun
	servers map[types.UID]*server
}

// server is one that waits, or waited until it is told how that ended.
type server struct {
	namespace, name string
	claims          map[string]*claim // by key
}

// claim is a server's interest in one thing. It outlives the fetch, so that the
// next call learns how that ended and Pending goes on showing a failure.
type claim struct {
	fetch *Fetch // nil when it is over
	err   error
	told  bool
}

// Fetch is one that is under way.
type Fetch struct {
	book      *Tracker
	key       string
	namespace string // of the server that it was begun for
	what      string // it is, for people
	doing     string // the same, and how far it has come; under the book's lock
	told      time.Time
	cancel    context.CancelCauseFunc
	turn      chan struct{} // closed when it may begin
	done      chan struct{}
	alive     chan struct{} // has a value after progress
}

// Outcome is how a fetch went that a server waits for.
type Outcome int

// The outcomes.
const (
	// None : the server does not wait, or was told already that it failed.
	None Outcome = iota
	// Running : the fetch is under way.
	Running
	// Fetched : the fetch ended well.
	Fetched
)

// Outcome tells how the fetch of key went for a server. A failure is told once;
// it is ErrRetry with ReasonImageUnavailable, or ErrInvalid.
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

// Begin has a server wait for the fetch of key, and starts it by get where there
// is none. It goes on after the call that began it, until it ends, stalls or
// nobody waits for it. What it is doing is for people, such as "pulling nginx".
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

// cancelStalled ends a fetch that has been silent for too long.
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

// Alive says that the fetch goes on.
func (f *Fetch) Alive() {
	select {
	case f.alive <- struct{}{}:
	default:
	}
}

// Progress says that the fetch goes on, and what it is doing now. Who waits is
// told of news now and then.
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

// end records how a fetch ended for all who waited, and returns them. An error is of
// the kind "try again", even if the engine was lost over it, save that what only
// another spec helps with stays so.
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

// The methods from here to drop want the lock held.

func (b *Tracker) waiting(f *Fetch) []types.UID {
	var all []types.UID
	for uid, s := range b.servers {
		if c := s.claims[f.key]; c != nil && c.fetch == f {
			all = append(all, uid)
		}
	}
	return all
}

// forget : nobody can join a fetch that was cancelled or has ended.
func (b *Tracker) forget(f *Fetch) {
	if b.running[f.key] == f {
		delete(b.running, f.key)
	}
}

// drop ends the interest of a server in all but some things, and returns the
// fetches that nobody else waits for, cancelled.
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

// Keep ends the interest of a server in all but some things.
func (b *Tracker) Keep(uid types.UID, keys ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(uid, keys)
}

// Abandon ends the interest of a server, and waits for the end of fetches that
// nobody else waits for. It is ErrRetry if ctx ends before.
func (b *Tracker) Abandon(ctx context.Context, uid types.UID) error {
	b.mu.Lock()
	dropped := b.drop(uid, nil)
	b.mu.Unlock()
	return join(ctx, dropped)
}

// join waits for the end of fetches that were cancelled.
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

// Close cancels all fetches, and waits for their end. It is ErrRetry if ctx ends
// before.
func (b *Tracker) Close(ctx context.Context) error {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.running))
	b.mu.Unlock()
	for _, f := range all {
		f.cancel(errAbandoned)
	}
	return join(ctx, all)
}

// Progress says how the fetches that a server waits for go, or nothing.
func (b *Tracker) Progress(uid types.UID) string { return b.Server(uid).Progress }

// Server is a server that has nothing but its fetches.
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

// Pending are the servers that wait, or were not told yet how that ended: all, or
// those of the UIDs.
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
