// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sync/errgroup"
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
	fetching := d.fetches.PendingServers(uids...)
	summaries, err := d.summaries(ctx, true, uids...)
	if err != nil {
		return nil, err
	}
	records, err := d.records(ctx, summaries, len(uids) == 0)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetAllBut(summaries)
	}
	return d.servers(records, fetching), nil
}

// servers returns the containers, and the fetches of UIDs that have no container.
func (d *Driver) servers(records []record, fetching []driver.Server) []driver.Server {
	all := make([]driver.Server, 0, len(records)+len(fetching))
	has := map[types.UID]bool{}
	for _, r := range records {
		all = append(all, d.server(r))
		has[r.uid] = has[r.uid] || !isRetained(r.name)
	}
	for _, f := range fetching {
		if !has[f.UID] {
			all = append(all, f)
		}
	}
	return all
}

// summaries lists this cluster's containers: all, or those of the given UIDs that
// were not released. The engine requires all of several label filters to match, so
// it can filter by one UID only.
func (d *Driver) summaries(ctx context.Context, evenStopped bool, uids ...types.UID) ([]container.Summary, error) {
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
		return isRetained(nameOf(s)) || !slices.Contains(uids, types.UID(s.Labels[LabelUID]))
	}), nil
}

// records inspects listed containers; if cached is true, only those that may have
// changed since the last look.
func (d *Driver) records(ctx context.Context, summaries []container.Summary, cached bool) ([]record, error) {
	records := make([]record, len(summaries))
	errs := make([]error, len(summaries))
	var all errgroup.Group
	all.SetLimit(inspectLimit)
	for i, s := range summaries {
		all.Go(func() error {
			records[i], errs[i] = d.record(ctx, s, cached)
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

func (d *Driver) record(ctx context.Context, s container.Summary, cached bool) (record, error) {
	known, fresh := d.cache.get(s.ID, d.Clock.Now())
	if cached && fresh && known.state == s.State && known.name == nameOf(s) {
		known.addresses = fromSummary(s).addresses
		return known, nil
	}
	seen := d.cache.look(s.ID)
	inspectCtx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	r, err := d.inspect(inspectCtx, s.ID)
	switch {
	case err == nil:
		d.cache.put(seen, r, d.Clock.Now())
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return stuck(s, known, err), nil
	case ctx.Err() == nil && !isGone(err) && !errors.Is(err, driver.ErrUnavailable):
		return stuck(s, known, err), nil
	}
	return r, err
}

// stuck returns the record of a container that the engine lists but cannot
// inspect.
func stuck(s container.Summary, known record, err error) record {
	r := fromSummary(s)
	if known.id == s.ID {
		r = known
		r.state = s.State
	}
	r.unresponsive = err
	return r
}

func (d *Driver) forgetAllBut(summaries []container.Summary) {
	there := map[string]bool{}
	for _, s := range summaries {
		there[s.ID] = true
	}
	d.stops.prune(there)
	d.notes.prune(there)
	d.cache.prune(there)
}
