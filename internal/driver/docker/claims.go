// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"slices"
	"time"

	"github.com/moby/moby/api/types/jsonstream"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// start makes uid wait for image, and returns its fetch and whether that is to
// be begun, in which case cancel is what ends it.
func (f *fetches) start(spec driver.ServerSpec, image string, cancel context.CancelFunc) (_ *fetch, isNew bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := fullReference(image)
	run := f.byImage[key]
	if isNew = run == nil; isNew {
		run = &fetch{image: image, cancel: cancel, done: make(chan struct{})}
		if f.byImage == nil {
			f.byImage, f.claims = map[string]*fetch{}, map[types.UID]*claim{}
		}
		f.byImage[key] = run
	}
	f.claims[spec.UID] = &claim{namespace: spec.Namespace, name: spec.Name, image: image, fetch: run}
	return run, isNew
}

// outcome tells whether the image was fetched for uid, or why not, the latter
// once. Interest in another image is dropped.
func (f *fetches) outcome(uid types.UID, image string) (over bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.claims[uid]
	switch {
	case c == nil:
		return false, nil
	case c.image != image:
		f.drop(uid)
		return false, nil
	case c.fetch != nil:
		return false, nil
	case c.err == nil:
		return true, nil
	case c.told:
		return false, nil
	}
	c.told = true
	return false, c.err
}

// end records how a fetch ended for all who waited, and returns them.
func (f *fetches) end(run *fetch, err error) []types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		// The kind is always "try again", even if the engine was lost over it.
		err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "%s", err.Error()))
	}
	f.forget(run)
	waiting := f.waiting(run)
	for _, uid := range waiting {
		f.claims[uid].fetch, f.claims[uid].err = nil, err
	}
	return waiting
}

func (f *fetches) waiting(run *fetch) []types.UID {
	var all []types.UID
	for uid, c := range f.claims {
		if c.fetch == run {
			all = append(all, uid)
		}
	}
	return all
}

func (f *fetches) forget(run *fetch) {
	if key := fullReference(run.image); f.byImage[key] == run {
		delete(f.byImage, key)
	}
}

// progressed returns who should be looked at again, now and then.
func (f *fetches) progressed(run *fetch, m jsonstream.Message, now time.Time) []types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !run.progress.add(m) || now.Sub(run.told) < tellProgress {
		return nil
	}
	run.told = now
	return f.waiting(run)
}

// used ends the interest of a server that needs its image no more.
func (f *fetches) used(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(uid)
}

// drop ends the interest of a server, and returns the fetch if that was the
// last one, cancelled. Nobody can join a cancelled fetch.
func (f *fetches) drop(uid types.UID) *fetch {
	c := f.claims[uid]
	delete(f.claims, uid)
	if c == nil || c.fetch == nil || len(f.waiting(c.fetch)) > 0 {
		return nil
	}
	f.forget(c.fetch)
	c.fetch.cancel()
	return c.fetch
}

// abandon drops and joins.
func (f *fetches) abandon(ctx context.Context, uid types.UID) error {
	f.mu.Lock()
	run := f.drop(uid)
	f.mu.Unlock()
	if run == nil {
		return nil
	}
	select {
	case <-run.done:
		return nil
	case <-ctx.Done():
		return driver.Errorf(driver.ErrRetry, "the pull of image %s does not end: %w", run.image, ctx.Err())
	}
}

func (f *fetches) closeAll() {
	for _, run := range f.cancelAll() {
		<-run.done
	}
}

func (f *fetches) cancelAll() []*fetch {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []*fetch
	for _, run := range f.byImage {
		run.cancel()
		all = append(all, run)
	}
	return all
}

// doing says how a fetch that is under way goes, or nothing.
func (f *fetches) doing(uid types.UID) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims[uid].doing()
}

func (c *claim) doing() string {
	if c == nil || c.fetch == nil {
		return ""
	}
	return c.fetch.progress.text(c.image)
}

// pending is the server of a UID that has nothing but its fetch.
func (f *fetches) pending(uid types.UID) driver.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims[uid].server(uid)
}

func (c *claim) server(uid types.UID) driver.Server {
	s := driver.Server{UID: uid, State: driver.StatePending}
	if c == nil {
		return s
	}
	s.Namespace, s.Name, s.Err, s.Doing = c.namespace, c.name, c.err, c.doing()
	return s
}

// list is pending for all, or for those named.
func (f *fetches) list(uids []types.UID) []driver.Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []driver.Server
	for uid, c := range f.claims {
		if len(uids) == 0 || slices.Contains(uids, uid) {
			all = append(all, c.server(uid))
		}
	}
	return all
}
