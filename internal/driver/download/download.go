// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package download fetches images and the like for drivers in the background. Each item is
// fetched once for all servers that wait for it. A fetch does not change servers: the next call
// of the driver for a waiting server, such as Ensure, uses the result.
//
// A fetch runs only while it has a slot. The slots are in three lanes, which are separate queues: for
// quick, large and slow fetches. No namespace may have all slots of a lane. lanes.go decides which
// fetch gets the next slot, and slots.go records which fetches have a slot.
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
	// Concurrency is how many slots each lane has, of which a namespace may have all but one.
	// Zero means any number.
	Concurrency int

	mu      sync.Mutex
	running map[string]*Fetch // by key, including the fetches that wait for a slot
	slots   slots
	counter uint64            // the last number: each arrival and each start of a fetch takes the next one
	served  map[string]uint64 // by namespace, the number of its last start of a fetch, or of its arrival if none has started
	servers map[types.UID]*server
}

// server is a server that waits for fetches, or that has not asked for their results yet.
type server struct {
	namespace, name string
	claims          map[string]*claim // by key
}

// claim is the claim of a server on the result of a fetch. It outlives the fetch, so that the next
// Outcome returns the result and PendingServers continues to show a failure.
type claim struct {
	fetch    *Fetch // nil once the fetch has ended
	err      error
	reported bool
}

// Outcome is the state of a fetch that a server waits for.
type Outcome int

const (
	// None means that the server does not wait, or that an earlier call returned the failure.
	None Outcome = iota
	// Running means that the fetch is under way.
	Running
	// Fetched means that the fetch has succeeded.
	Fetched
)

// Outcome reports the state of the fetch of key for a server. It returns a failure only once,
// as ErrRetry with ReasonImageUnavailable, or as ErrInvalid.
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

// findClaim returns the server's claim on the fetch of key, or nil. The server may be nil too.
func (s *server) findClaim(key string) *claim {
	if s == nil {
		return nil
	}
	return s.claims[key]
}

// StartFetch registers a server as waiting for the fetch of key, and starts this fetch if
// necessary. The fetch outlives ctx: it runs get until get returns, makes no progress for too
// long, or no server waits any more. If the fetch loses its slot, get is cancelled and later
// called again. The description is for users, such as "pulling nginx".
func (t *Tracker) StartFetch(ctx context.Context, spec driver.ServerSpec, key, description string, get func(context.Context, *Fetch) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running, t.servers, t.served = map[string]*Fetch{}, map[types.UID]*server{}, map[string]uint64{}
		t.slots = slots{clock: t.Clock, perLane: t.Concurrency}
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
	if f.isWaiting && t.slots.hasSlotFor(f.lane, spec.Namespace) {
		t.admitWaiting()
	}
}

// recordResult records the result of a fetch for all servers that wait, and returns these servers.
// An ErrInvalid, which only another spec can mend, remains one. Other errors become ErrRetry and lose
// their kind: ErrUnavailable, for example, would be about the engine. The methods from here to
// releaseClaims require the lock to be held.
func (t *Tracker) recordResult(f *Fetch, err error) []types.UID {
	switch {
	case err == nil:
	case errors.Is(err, driver.ErrInvalid):
		err = driver.Errorf(driver.ErrInvalid, "%s", err.Error())
	default:
		err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "%s", err.Error()))
	}
	t.removeFetch(f)
	waiting := t.serversWaitingFor(f)
	for _, uid := range waiting {
		c := t.servers[uid].claims[f.key]
		c.fetch, c.err = nil, err
	}
	return waiting
}

func (t *Tracker) serversWaitingFor(f *Fetch) []types.UID {
	var all []types.UID
	for uid, s := range t.servers {
		if c := s.claims[f.key]; c != nil && c.fetch == f {
			all = append(all, uid)
		}
	}
	return all
}

// removeFetch removes a fetch that was cancelled or has ended, so that no further server waits for
// it.
func (t *Tracker) removeFetch(f *Fetch) {
	if t.running[f.key] == f {
		delete(t.running, f.key)
	}
}

// releaseClaims ends a server's claims, except the claims on keptKeys. It cancels the fetches that
// no other server waits for, and returns them.
func (t *Tracker) releaseClaims(uid types.UID, keptKeys []string) []*Fetch {
	s := t.servers[uid]
	if s == nil {
		return nil
	}
	var cancelled []*Fetch
	for key, c := range s.claims {
		if slices.Contains(keptKeys, key) {
			continue
		}
		delete(s.claims, key)
		if c.fetch != nil && len(t.serversWaitingFor(c.fetch)) == 0 {
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

// ReleaseExcept ends a server's claims, except the claims on the given keys.
func (t *Tracker) ReleaseExcept(uid types.UID, keys ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseClaims(uid, keys)
}

// Abandon ends all claims of a server, cancels the fetches that no other server waits for, and
// waits for their end. It returns ErrRetry if ctx ends first.
func (t *Tracker) Abandon(ctx context.Context, uid types.UID) error {
	t.mu.Lock()
	cancelled := t.releaseClaims(uid, nil)
	t.mu.Unlock()
	return waitForEnd(ctx, cancelled)
}

func waitForEnd(ctx context.Context, cancelled []*Fetch) error {
	for _, f := range cancelled {
		select {
		case <-f.done:
		case <-ctx.Done():
			return driver.Errorf(driver.ErrRetry, "%s: the fetch was cancelled but has not ended yet: %w", f.currentStatus(), ctx.Err())
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
		f.abandon()
		if f.isWaiting { // it does not have a run, which would record the result
			t.recordResult(f, errAbandoned)
		}
	}
	return all
}

// AddTo calls list, sets the progress of fetches in the returned servers, and adds the servers
// that only wait for a fetch: all of them, or those with the given UIDs. It reads the fetches
// before it calls list: a server that is made in between is then found twice, not missed.
func (t *Tracker) AddTo(list func() ([]driver.Server, error), uids ...types.UID) ([]driver.Server, error) {
	waiting := t.PendingServers(uids...)
	servers, err := list()
	exists := map[types.UID]bool{}
	for n := range servers {
		if s := &servers[n]; !s.Retained { // a retained server is not the one that waits
			exists[s.UID], s.Progress = true, cmp.Or(s.Progress, t.Progress(s.UID))
		}
	}
	if err != nil {
		return servers, err
	}
	waiting = slices.DeleteFunc(waiting, func(s driver.Server) bool { return exists[s.UID] })
	return append(servers, waiting...), nil
}

// Progress describes a fetch that the server waits for. It is empty without such a fetch.
func (t *Tracker) Progress(uid types.UID) string { return t.PendingServer(uid).Progress }

// PendingServer returns a server that does not exist yet, in StatePending with its fetches.
func (t *Tracker) PendingServer(uid types.UID) driver.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers[uid].toPending(uid)
}

// toPending implements PendingServer. The receiver is nil for a server that does not wait.
func (s *server) toPending(uid types.UID) driver.Server {
	pending := driver.Server{UID: uid, State: driver.StatePending}
	if s == nil {
		return pending
	}
	pending.Namespace, pending.Name = s.namespace, s.name
	for _, c := range s.claims {
		if c.fetch != nil {
			pending.Progress = cmp.Or(pending.Progress, c.fetch.status)
		}
		pending.Err = cmp.Or(pending.Err, c.err)
	}
	return pending
}

// PendingServers returns the servers that wait for a fetch or whose last fetch failed: all of them,
// or those with the given UIDs.
func (t *Tracker) PendingServers(uids ...types.UID) []driver.Server {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []driver.Server
	for uid, s := range t.servers {
		if len(uids) == 0 || slices.Contains(uids, uid) {
			all = append(all, s.toPending(uid))
		}
	}
	return all
}
