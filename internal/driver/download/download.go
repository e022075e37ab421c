// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package download tracks what drivers fetch in the background. Each thing is
// fetched once for all servers that wait for it. A fetch only fetches: the next call
// for a waiting server does the rest.
//
// Fetches of all namespaces share a few places, of which each namespace has its share, and
// large or slow ones have places apart: lanes.go says who is next for a place, and places.go who has one.
//
// Start with Tracker.Outcome and Tracker.StartFetch.
package download

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// Tracker records the fetches under way and the servers that wait for them. It is
// safe for concurrent use.
type Tracker struct {
	Clock clock.WithTicker
	// Stall is how long a fetch may go without any progress.
	Stall time.Duration
	// Notify is called with the UIDs of servers whose state may have changed.
	Notify func(...types.UID)
	// Concurrency is how many places each lane has; one namespace may have one fewer. Zero
	// means any number. The other fetches wait for their turn.
	Concurrency int

	mu      sync.Mutex
	running map[string]*Fetch // by key, including those that wait for a place
	places  places
	served  map[string]uint64 // by namespace, when its last fetch began, or else when it came
	counter uint64            // of arrivals and begins
	servers map[types.UID]*server
}

// server is a server that waits, or whose result was not reported to it yet.
type server struct {
	namespace, name string
	claims          map[string]*claim // by key
}

// claim is the claim of a server on the result of a fetch. It outlives the fetch, so
// that the next call gets the result and PendingServers continues to show a failure.
type claim struct {
	fetch    *Fetch // nil when it is over
	err      error
	reported bool
}

// Outcome is the state of a fetch that a server waits for.
type Outcome int

const (
	// None means that the server does not wait, or that the failure was reported to it already.
	None Outcome = iota
	// Running means that the fetch is under way.
	Running
	// Fetched means that the fetch has ended well.
	Fetched
)

// Outcome reports the state of the fetch of key for a server. A failure is returned
// once; it is ErrRetry with ReasonImageUnavailable, or ErrInvalid.
func (t *Tracker) Outcome(uid types.UID, key string) (Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.servers[uid].findClaim(key)
	switch {
	case c == nil, c.reported:
		return None, nil
	case c.fetch != nil:
		return Running, nil
	case c.err == nil:
		return Fetched, nil
	}
	c.reported = true
	return None, c.err
}

// findClaim returns the claim on the result of the fetch of key, nil if there is none. A nil server has none.
func (s *server) findClaim(key string) *claim {
	if s == nil {
		return nil
	}
	return s.claims[key]
}

// StartFetch registers a server as waiting for the fetch of key, and starts that with get
// if there is none. The fetch outlives the call that began it; it runs until it ends,
// stalls or no server waits for it. A get that ends without its place is called again later.
// The description is for people, such as "pulling nginx".
func (t *Tracker) StartFetch(ctx context.Context, spec driver.ServerSpec, key, description string, get func(context.Context, *Fetch) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running, t.servers, t.served = map[string]*Fetch{}, map[types.UID]*server{}, map[string]uint64{}
		t.places = places{clock: t.Clock, perLane: t.Concurrency}
	}
	f := t.running[key]
	if f == nil {
		f = t.newFetch(context.WithoutCancel(ctx), key, description, get)
		t.running[key] = f
		t.enqueueFetch(f)
	}
	s := t.servers[spec.UID]
	if s == nil {
		s = &server{namespace: spec.Namespace, name: spec.Name, claims: map[string]*claim{}}
		t.servers[spec.UID] = s
	}
	if _, known := t.served[spec.Namespace]; !known {
		t.served[spec.Namespace] = t.nextNumber()
	}
	s.claims[key] = &claim{fetch: f}
	if f.waits && t.places.hasPlaceFor(f.lane, spec.Namespace) {
		t.admitWaiting()
	}
}

// recordResult records the result of a fetch for all servers that waited, and returns
// them. An error becomes ErrRetry, even if the engine was lost meanwhile, except that
// ErrInvalid is preserved: only another spec helps there. It requires the lock to be held,
// as do the following methods up to releaseClaims.
func (t *Tracker) recordResult(f *Fetch, err error) []types.UID {
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrInvalid):
		err = driver.Errorf(driver.ErrInvalid, "%s", err.Error())
	default:
		err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "%s", err.Error()))
	}
	t.removeFetch(f)
	waiting := t.waitingServers(f)
	for _, uid := range waiting {
		c := t.servers[uid].claims[f.key]
		c.fetch, c.err = nil, err
	}
	return waiting
}

func (t *Tracker) waitingServers(f *Fetch) []types.UID {
	var all []types.UID
	for uid, s := range t.servers {
		if c := s.claims[f.key]; c != nil && c.fetch == f {
			all = append(all, uid)
		}
	}
	return all
}

// removeFetch removes a fetch that was cancelled or has ended, so that no server can
// join it.
func (t *Tracker) removeFetch(f *Fetch) {
	if t.running[f.key] == f {
		delete(t.running, f.key)
	}
}

// releaseClaims ends a server's claims, except those on the given keys. It cancels, and
// returns, the fetches that no other server waits for.
func (t *Tracker) releaseClaims(uid types.UID, except []string) []*Fetch {
	s := t.servers[uid]
	if s == nil {
		return nil
	}
	var cancelled []*Fetch
	for key, c := range s.claims {
		if slices.Contains(except, key) {
			continue
		}
		delete(s.claims, key)
		if c.fetch != nil && len(t.waitingServers(c.fetch)) == 0 {
			t.removeFetch(c.fetch)
			c.fetch.abandon()
			cancelled = append(cancelled, c.fetch)
		}
	}
	if len(s.claims) == 0 {
		delete(t.servers, uid)
	}
	return cancelled
}

// ReleaseExcept ends a server's claims, except those on the given keys.
func (t *Tracker) ReleaseExcept(uid types.UID, keys ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseClaims(uid, keys)
}

// Abandon ends all claims of a server, and waits for the end of fetches that no other
// server waits for. It returns ErrRetry if ctx ends first.
func (t *Tracker) Abandon(ctx context.Context, uid types.UID) error {
	t.mu.Lock()
	dropped := t.releaseClaims(uid, nil)
	t.mu.Unlock()
	return waitForEnd(ctx, dropped)
}

// waitForEnd waits for the end of cancelled fetches.
func waitForEnd(ctx context.Context, cancelled []*Fetch) error {
	for _, f := range cancelled {
		select {
		case <-f.done:
		case <-ctx.Done():
			return driver.Errorf(driver.ErrRetry, "%s: it was cancelled and does not end: %w", f.currentStatus(), ctx.Err())
		}
	}
	return nil
}

// Close cancels all fetches and waits for their end. It returns ErrRetry if ctx ends
// first.
func (t *Tracker) Close(ctx context.Context) error {
	return waitForEnd(ctx, t.abandonAll())
}

func (t *Tracker) abandonAll() []*Fetch {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.running))
	for _, f := range all {
		t.removeFetch(f)
		if f.abandon(); f.waits {
			t.recordResult(f, errAbandoned)
		}
	}
	return all
}

// AddTo adds, to the servers that list finds, what they wait for, and the servers that have
// nothing but a fetch: all, or those with the given UIDs. It looks at fetches first: one that
// becomes a server meanwhile is then found twice rather than never.
func (t *Tracker) AddTo(list func() ([]driver.Server, error), uids ...types.UID) ([]driver.Server, error) {
	waiting := t.PendingServers(uids...)
	servers, err := list()
	exists := map[types.UID]bool{}
	for n := range servers {
		if s := &servers[n]; !s.Retained {
			exists[s.UID], s.Progress = true, cmp.Or(s.Progress, t.Progress(s.UID))
		}
	}
	waiting = slices.DeleteFunc(waiting, func(s driver.Server) bool { return err != nil || exists[s.UID] })
	return append(servers, waiting...), err
}

// Progress describes the fetches that a server waits for, or is empty.
func (t *Tracker) Progress(uid types.UID) string { return t.PendingServer(uid).Progress }

// PendingServer returns the server in StatePending, with nothing but its fetches.
func (t *Tracker) PendingServer(uid types.UID) driver.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers[uid].describe(uid)
}

// describe returns the server of a UID as it is listed. A nil server does not wait.
func (s *server) describe(uid types.UID) driver.Server {
	out := driver.Server{UID: uid, State: driver.StatePending}
	if s == nil {
		return out
	}
	out.Namespace, out.Name = s.namespace, s.name
	for _, c := range s.claims {
		if c.fetch != nil {
			out.Progress = cmp.Or(out.Progress, c.fetch.status)
		}
		out.Err = cmp.Or(out.Err, c.err)
	}
	return out
}

// PendingServers returns the servers that wait, or that have an unreported result: all,
// or those with the given UIDs.
func (t *Tracker) PendingServers(uids ...types.UID) []driver.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []driver.Server
	for uid, s := range t.servers {
		if len(uids) == 0 || slices.Contains(uids, uid) {
			all = append(all, s.describe(uid))
		}
	}
	return all
}
