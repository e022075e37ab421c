// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
)

const (
	// inspectLimit is how many containers are inspected at once.
	inspectLimit = 16
	// inspectTimeout is for one container among many: one that is stuck in the
	// engine must not hide the others.
	inspectTimeout = 5 * time.Second
	// maxCacheAge limits how long a container goes without being inspected, because an
	// engine drops events for a reader that is too slow.
	maxCacheAge = 5 * time.Minute
)

// List implements driver.Driver. A full list takes one call to the engine plus one
// for every container that changed; a list of named servers inspects each. A
// released server belongs to no UID, so only the full list shows it.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	return d.fetches.AddTo(func() ([]driver.Server, error) { return d.listServers(ctx, uids) }, uids...)
}

func (d *Driver) listServers(ctx context.Context, uids []types.UID) ([]driver.Server, error) {
	summaries, err := d.listContainers(ctx, true, uids...)
	if err != nil {
		return nil, err
	}
	instances, err := d.inspectAll(ctx, summaries, len(uids) == 0)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetMissing(summaries)
	}
	servers := make([]driver.Server, len(instances))
	for n, i := range instances {
		servers[n] = i.toServer()
	}
	return servers, nil
}

// inspectAll inspects listed containers; if cached is true, only those that may have
// changed since they were last inspected.
func (d *Driver) inspectAll(ctx context.Context, summaries []container.Summary, cached bool) ([]*instance, error) {
	inspected, errs := kit.Each(ctx, inspectLimit, summaries, func(s container.Summary) (*instance, error) {
		return d.inspectListed(ctx, s, cached)
	})
	existing := inspected[:0]
	for n, i := range inspected {
		switch {
		case errdefs.IsNotFound(errs[n]):
		case errs[n] != nil:
			return nil, errs[n]
		default:
			existing = append(existing, i)
		}
	}
	return existing, nil
}

func (d *Driver) inspectListed(ctx context.Context, s container.Summary, cached bool) (*instance, error) {
	known, fresh := d.cache.lastInspection(s.ID, d.Options.Clock.Now())
	if cached && fresh && known.state == s.State && known.name == summaryName(s) {
		current := *known
		current.addresses = instanceFromSummary(d, s).addresses
		return &current, nil
	}
	entry := d.cache.beginInspection(s.ID)
	inspectCtx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	i, err := d.inspectContainer(inspectCtx, s.ID)
	switch {
	case err == nil:
		d.cache.storeInspection(entry, i, d.Options.Clock.Now())
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded),
		ctx.Err() == nil && !errdefs.IsNotFound(err) && !errors.Is(err, driver.ErrUnavailable):
		// The engine lists it and cannot inspect it: it is as it was last inspected, if it ever was.
		i = instanceFromSummary(d, s)
		if known != nil {
			*i = *known
			i.state = s.State
		}
		i.inspectErr = err
		return i, nil
	}
	return i, err
}

// forgetMissing removes what is held for containers that are not in a complete list.
func (d *Driver) forgetMissing(summaries []container.Summary) {
	existing := sets.Set[string]{}
	for _, s := range summaries {
		existing.Insert(s.ID)
	}
	d.stops.DeleteFunc(func(id string, _ stopRequest) bool { return !existing.Has(id) })
	d.ends.DeleteFunc(func(id string, _ time.Time) bool { return !existing.Has(id) })
	d.rootDisks.DeleteFunc(func(id string, _ int64) bool { return !existing.Has(id) })
	d.cache.forgetMissing(existing)
}

// inspectionCache holds inspected containers while an event stream is open that would
// report a change. It only saves inspections and is never the source of truth: without
// a stream it is empty.
type inspectionCache struct {
	mu      sync.Mutex
	streams int
	entries map[string]*cacheEntry // nil without a stream
}

// cacheEntry is replaced at every event. An inspection that began before the event then
// has an entry that is no longer in the cache.
type cacheEntry struct {
	instance    *instance // as last inspected, or nil
	inspectedAt time.Time // zero if there was an event since
}

// beginInspection returns the entry for the result of an inspection.
func (c *inspectionCache) beginInspection(id string) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.entries[id]
	if entry == nil {
		entry = &cacheEntry{}
	}
	if c.streams > 0 {
		c.entries[id] = entry
	}
	return entry
}

// storeInspection stores the result of an inspection, unless that may be outdated.
func (c *inspectionCache) storeInspection(entry *cacheEntry, i *instance, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[i.id] == entry {
		entry.instance, entry.inspectedAt = i, now
	}
}

// lastInspection returns a container as it was last inspected, or nil, and whether
// that can be trusted.
func (c *inspectionCache) lastInspection(id string, now time.Time) (i *instance, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.entries[id]
	if entry == nil {
		return nil, false
	}
	return entry.instance, !entry.inspectedAt.IsZero() && now.Sub(entry.inspectedAt) < maxCacheAge
}

// invalidateInspection is called for every event.
func (c *inspectionCache) invalidateInspection(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams == 0 {
		return
	}
	entry := &cacheEntry{}
	if previous := c.entries[id]; previous != nil {
		entry.instance = previous.instance
	}
	c.entries[id] = entry
}

func (c *inspectionCache) streamOpened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams++; c.streams == 1 {
		c.entries = map[string]*cacheEntry{}
	}
}

func (c *inspectionCache) streamClosed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams--; c.streams == 0 {
		c.entries = nil
	}
}

func (c *inspectionCache) forgetMissing(existing sets.Set[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.entries, func(id string, _ *cacheEntry) bool { return !existing.Has(id) })
}
