// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// claim is a server's interest in an image. It outlives the fetch, so that the
// next Wait learns how that ended and Pending goes on showing a failure.
type claim struct {
	namespace, name string
	key             key
	fetch           *fetch // nil when it is over
	err             error
	told            bool
}

// fetch is one that is under way.
type fetch struct {
	store  *Store
	key    key
	cancel context.CancelCauseFunc
	done   chan struct{}
	alive  chan struct{} // has a value after progress

	got, total int64
	told       time.Time
}

// Wait tells whether a server has to wait for an image, and begins to fetch it
// where needed. A fetch that failed is told once; the call after that begins a
// new one.
func (s *Store) Wait(ctx context.Context, spec driver.ServerSpec, i driver.Image) (waits bool, err error) {
	_, there := s.Path(i)
	if i.PullPolicy == driver.PullNever && !there {
		return false, driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry,
			"image %s was not fetched before and its pullPolicy is Never", i.Source))
	}
	// A checksum leaves nothing to fetch again.
	if there && (i.PullPolicy != driver.PullAlways || i.Checksum != "") {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{i.Source, i.Checksum}
	if c := s.claims[spec.UID]; c != nil && c.key == k {
		switch {
		case c.fetch != nil:
			return true, nil
		case c.err == nil && there:
			return false, nil
		case c.err != nil && !c.told:
			c.told = true
			return false, c.err
		}
	}
	s.begin(ctx, spec, k)
	return true, nil
}

// begin joins a server to the fetch of an image. It goes on after the call that
// began it. The methods from here on to tell want the lock held.
func (s *Store) begin(ctx context.Context, spec driver.ServerSpec, k key) {
	s.drop(spec.UID)
	f := s.fetches[k]
	if f == nil {
		f = &fetch{store: s, key: k, done: make(chan struct{}), alive: make(chan struct{}, 1)}
		ctx, f.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		if s.fetches == nil {
			s.fetches, s.claims = map[key]*fetch{}, map[types.UID]*claim{}
		}
		s.fetches[k] = f
		go s.run(ctx, f)
	}
	s.claims[spec.UID] = &claim{namespace: spec.Namespace, name: spec.Name, key: k, fetch: f}
}

func (s *Store) waiting(f *fetch) []types.UID {
	var all []types.UID
	for uid, c := range s.claims {
		if c.fetch == f {
			all = append(all, uid)
		}
	}
	return all
}

// drop ends the interest of a server, and returns the fetch if that was the last
// one, cancelled. Nobody can join a cancelled fetch.
func (s *Store) drop(uid types.UID) *fetch {
	c := s.claims[uid]
	delete(s.claims, uid)
	if c == nil || c.fetch == nil || len(s.waiting(c.fetch)) > 0 {
		return nil
	}
	s.forget(c.fetch)
	c.fetch.cancel(errAbandoned)
	return c.fetch
}

func (s *Store) forget(f *fetch) {
	if s.fetches[f.key] == f {
		delete(s.fetches, f.key)
	}
}

var (
	errAbandoned = errors.New("nobody waits for it any more")
	errStalled   = errors.New("it stalled")
)

func (s *Store) run(ctx context.Context, f *fetch) {
	defer close(f.done)
	defer f.cancel(nil)
	go s.cancelStalled(ctx, f)
	err := s.get(ctx, f)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		err = fmt.Errorf("no progress for %v: %w", s.Stall, errStalled)
	}
	s.tell(s.end(f, err))
}

func (s *Store) tell(uids []types.UID) {
	for _, uid := range uids {
		s.Tell(uid)
	}
}

// cancelStalled ends a fetch that has been silent for too long.
func (s *Store) cancelStalled(ctx context.Context, f *fetch) {
	timer := s.Clock.NewTimer(s.Stall)
	defer timer.Stop()
	for {
		select {
		case <-f.alive:
			timer.Reset(s.Stall)
		case <-timer.C():
			f.cancel(errStalled)
			return
		case <-ctx.Done():
			return
		}
	}
}

// end records how a fetch ended for all who waited, and returns them.
func (s *Store) end(f *fetch, err error) []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "image %s: %w", f.key.source, err))
	}
	s.forget(f)
	waiting := s.waiting(f)
	for _, uid := range waiting {
		s.claims[uid].fetch, s.claims[uid].err = nil, err
	}
	return waiting
}

// Write counts what came.
func (f *fetch) Write(p []byte) (int, error) {
	select {
	case f.alive <- struct{}{}:
	default:
	}
	f.store.tell(f.store.progressed(f, int64(len(p))))
	return len(p), nil
}

func (f *fetch) setTotal(total int64) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	f.total = total
}

// progressed returns who should be looked at again, now and then.
func (s *Store) progressed(f *fetch, n int64) []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.got += n
	now := s.Clock.Now()
	if now.Sub(f.told) < tellProgress {
		return nil
	}
	f.told = now
	return s.waiting(f)
}

// Used ends the interest of a server that needs its image no more.
func (s *Store) Used(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(uid)
}

// Abandon ends the interest of a server, and waits for the end of a fetch that
// nobody else waits for.
func (s *Store) Abandon(ctx context.Context, uid types.UID) error {
	s.mu.Lock()
	f := s.drop(uid)
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return driver.Errorf(driver.ErrRetry, "the fetch of image %s does not end: %w", f.key.source, ctx.Err())
	}
}

// Doing says how a fetch that is under way for a server goes, or nothing.
func (s *Store) Doing(uid types.UID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims[uid].doing()
}

func (c *claim) doing() string {
	if c == nil || c.fetch == nil {
		return ""
	}
	got, total := float64(c.fetch.got)/1e6, float64(c.fetch.total)/1e6
	if total == 0 {
		return fmt.Sprintf("fetching %s: %.1f MB", c.key.source, got)
	}
	return fmt.Sprintf("fetching %s: %.0f%% (%.1f/%.1f MB)", c.key.source, got*100/total, got, total)
}

// Pending are servers that have nothing but their fetch: all, or those named.
func (s *Store) Pending(uids ...types.UID) []driver.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []driver.Server
	for uid, c := range s.claims {
		if len(uids) > 0 && !slices.Contains(uids, uid) {
			continue
		}
		all = append(all, driver.Server{UID: uid, State: driver.StatePending, Namespace: c.namespace, Name: c.name, Err: c.err, Doing: c.doing()})
	}
	return all
}
