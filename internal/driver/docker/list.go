// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

const (
	// inspectLimit is how many containers are inspected at once.
	inspectLimit = 16
	// inspectTimeout is for one container among many: one that is stuck in the
	// engine must not hide the others.
	inspectTimeout = 5 * time.Second
)

// List implements driver.Driver. A full list takes one call to the engine plus one
// for every container that changed; a list of named servers inspects each. A
// released server belongs to no UID, so only the full list shows it.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	// Fetches first: a fetch that becomes a container meanwhile is then seen twice
	// rather than never.
	fetching := d.fetches.Pending(uids...)
	summaries, err := d.listContainers(ctx, true, uids...)
	if err != nil {
		return nil, err
	}
	records, err := d.inspectAll(ctx, summaries, len(uids) == 0)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetMissing(summaries)
	}
	return d.mergeFetches(records, fetching), nil
}

// mergeFetches returns the containers, and the fetches of UIDs that have no container.
func (d *Driver) mergeFetches(records []instance, fetching []driver.Server) []driver.Server {
	all := make([]driver.Server, 0, len(records)+len(fetching))
	has := map[types.UID]bool{}
	for _, r := range records {
		all = append(all, d.serverOf(r))
		has[r.uid] = has[r.uid] || !isRetained(r.name)
	}
	for _, f := range fetching {
		if !has[f.UID] {
			all = append(all, f)
		}
	}
	return all
}

// listContainers lists this cluster's containers: all, or those of the given UIDs that
// were not released. The engine requires all of several label filters to match, so
// it can filter by one UID only.
func (d *Driver) listContainers(ctx context.Context, evenStopped bool, uids ...types.UID) ([]container.Summary, error) {
	filters := client.Filters{}.Add("label", LabelCluster+"="+d.ClusterID)
	if len(uids) == 1 {
		filters.Add("label", uidFilter(uids[0]))
	}
	var all []container.Summary
	err := d.read(ctx, "list containers", func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerList(ctx, client.ContainerListOptions{All: evenStopped, Filters: filters})
		all = res.Items
		return err
	})
	if err != nil || len(uids) == 0 {
		return all, err
	}
	return slices.DeleteFunc(all, func(s container.Summary) bool {
		return isRetained(summaryName(s)) || !slices.Contains(uids, types.UID(s.Labels[LabelUID]))
	}), nil
}

// inspectAll inspects listed containers; if cached is true, only those that may have
// changed since the last look.
func (d *Driver) inspectAll(ctx context.Context, summaries []container.Summary, cached bool) ([]instance, error) {
	records := make([]instance, len(summaries))
	errs := make([]error, len(summaries))
	var all errgroup.Group
	all.SetLimit(inspectLimit)
	for i, s := range summaries {
		all.Go(func() error {
			records[i], errs[i] = d.inspectListed(ctx, s, cached)
			return nil
		})
	}
	_ = all.Wait()
	there := records[:0]
	for i, r := range records {
		switch {
		case isGone(errs[i]):
		case errs[i] != nil:
			return nil, errs[i]
		default:
			there = append(there, r)
		}
	}
	return there, nil
}

func (d *Driver) inspectListed(ctx context.Context, s container.Summary, cached bool) (instance, error) {
	known, fresh := d.cache.lastInspection(s.ID, d.Clock.Now())
	if cached && fresh && known.state == s.State && known.name == summaryName(s) {
		known.addresses = instanceFromSummary(s).addresses
		return known, nil
	}
	seen := d.cache.beginInspection(s.ID)
	inspectCtx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	r, err := d.inspectContainer(inspectCtx, s.ID)
	switch {
	case err == nil:
		d.cache.storeInspection(seen, r, d.Clock.Now())
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return unresponsiveInstance(s, known, err), nil
	case ctx.Err() == nil && !isGone(err) && !errors.Is(err, driver.ErrUnavailable):
		return unresponsiveInstance(s, known, err), nil
	}
	return r, err
}

// unresponsiveInstance returns the record of a container that the engine lists but cannot
// inspect.
func unresponsiveInstance(s container.Summary, known instance, err error) instance {
	r := instanceFromSummary(s)
	if known.id == s.ID {
		r = known
		r.state = s.State
	}
	r.unresponsive = err
	return r
}

func (d *Driver) forgetMissing(summaries []container.Summary) {
	there := map[string]bool{}
	for _, s := range summaries {
		there[s.ID] = true
	}
	d.stops.prune(there)
	d.notes.prune(there)
	d.cache.prune(there)
}

// maxCacheAge limits how long a container goes without being inspected, because an
// engine drops events for a reader that is too slow.
const maxCacheAge = 5 * time.Minute

// inspectionCache holds records while an event stream is open that would report a change.
// It only saves inspections and is never the source of truth: without a stream it
// is empty.
type inspectionCache struct {
	mu      sync.Mutex
	streams int
	era     uint64 // grows when the looks under way must be ignored
	entries map[string]cacheEntry
}

type cacheEntry struct {
	instance  instance
	at      time.Time
	valid   bool
	version uint64 // grows with every event
}

// look is taken before a container is inspected, to detect afterwards whether an
// event arrived in between.
type look struct {
	era, version uint64
}

func (c *inspectionCache) beginInspection(id string) look {
	c.mu.Lock()
	defer c.mu.Unlock()
	return look{c.era, c.entries[id].version}
}

// storeInspection stores r, unless the look that preceded it may be outdated.
func (c *inspectionCache) storeInspection(l look, r instance, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams > 0 && l == (look{c.era, c.entries[r.id].version}) {
		c.entries[r.id] = cacheEntry{instance: r, at: now, valid: true, version: l.version}
	}
}

// lastInspection returns the last record of a container, and whether it can be trusted.
func (c *inspectionCache) lastInspection(id string, now time.Time) (r instance, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	return e.instance, e.valid && now.Sub(e.at) < maxCacheAge
}

// invalidateInspection is called for every event.
func (c *inspectionCache) invalidateInspection(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams > 0 {
		e := c.entries[id]
		e.valid = false
		e.version++
		c.entries[id] = e
	}
}

func (c *inspectionCache) streamOpened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams++; c.streams == 1 {
		c.era++
		c.entries = map[string]cacheEntry{}
	}
}

func (c *inspectionCache) streamClosed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams--; c.streams == 0 {
		c.era++
		c.entries = nil
	}
}

// prune removes versions too, so earlier looks cannot be judged any more: era grows.
func (c *inspectionCache) prune(there map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.entries)
	if prune(c.entries, there); len(c.entries) < before {
		c.era++
	}
}

// notes records the last requested rootDisk, so that List returns the same note as
// Ensure. The container's label has the value from its creation.
type notes struct {
	mu       sync.Mutex
	rootDisk map[string]int64
}

func (n *notes) remember(id string, rootDisk int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rootDisk == nil {
		n.rootDisk = map[string]int64{}
	}
	n.rootDisk[id] = rootDisk
}

// of returns the note on a container.
func (n *notes) of(r instance) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	disk, ok := n.rootDisk[r.id]
	if !ok {
		disk = r.rootDisk
	}
	if disk <= 0 {
		return ""
	}
	return "rootDisk " + formatBytes(disk) + " is not enforced: most Docker storage drivers cannot limit it"
}

// prune removes the entries of all but the existing containers.
func (n *notes) prune(there map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	prune(n.rootDisk, there)
}

// prune deletes from m the ids that are not in there.
func prune[V any](m map[string]V, there map[string]bool) {
	for id := range m {
		if !there[id] {
			delete(m, id)
		}
	}
}

// formatBytes writes 40000000000 as 40G and 42949672960 as 40Gi.
func formatBytes(bytes int64) string {
	format := resource.DecimalSI
	if bytes%1000 != 0 && bytes%1024 == 0 || bytes%(1<<30) == 0 {
		format = resource.BinarySI
	}
	return resource.NewQuantity(bytes, format).String()
}

// formatMegabytes formats a measured size, which needs no exact unit.
func formatMegabytes(bytes int64) string { return fmt.Sprintf("%dM", bytes/1e6) }
