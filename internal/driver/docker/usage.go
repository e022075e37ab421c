// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/kit"
)

const (
	// statsLimit is how many containers are sampled at once.
	statsLimit = 64
	// statsTimeout is so short that one stuck container cannot delay the others.
	statsTimeout = 5 * time.Second
)

// Usage implements driver.Driver: one list of the running containers, and one sample
// of each in parallel.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, nil
	}
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	summaries, err := d.listContainers(ctx, false, uids...)
	if err != nil {
		return nil, err
	}
	running, err := d.inspectAll(ctx, summaries, true)
	if err != nil {
		return nil, err
	}
	running = slices.DeleteFunc(running, func(i *instance) bool {
		return i.runID() == "" || i.state != container.StateRunning && i.state != container.StatePaused
	})
	return collectSamples(kit.Each(ctx, statsLimit, running, func(i *instance) (*driver.Usage, error) { return i.sampleUsage(ctx) }))
}

// collectSamples skips containers without a sample. It fails only if none has one.
func collectSamples(samples []*driver.Usage, errs []error) ([]driver.Usage, error) {
	var all []driver.Usage
	var failed error
	for n, s := range samples {
		switch {
		case s != nil:
			all = append(all, *s)
		case errs[n] != nil:
			failed = errs[n]
		}
	}
	if len(all) == 0 {
		return nil, failed
	}
	return all, nil
}

// sampleUsage returns nil if the container does not run any more.
func (i *instance) sampleUsage(ctx context.Context) (*driver.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	stats, err := i.readStats(ctx)
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
		return nil, nil //nolint:nilnil // a server that has ended gives neither a sample nor an error
	}
	if err != nil || stats.Read.Year() <= 1 {
		return nil, err
	}
	return &driver.Usage{
		UID: i.uid, Run: i.runID(), At: stats.Read,
		CPU:         time.Duration(stats.CPUStats.CPUUsage.TotalUsage), //nolint:gosec // 292 years
		MemoryBytes: memoryInUse(stats.MemoryStats),
	}, nil
}

// readStats reads a container's counters once. Without one-shot the engine would take
// a second for each.
func (i *instance) readStats(ctx context.Context) (stats container.StatsResponse, err error) {
	err = i.driver.engine.Read(ctx, "sample container "+engine.ShortID(i.id), func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerStats(ctx, i.id, client.ContainerStatsOptions{})
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if err := json.NewDecoder(res.Body).Decode(&stats); err != nil {
			return fmt.Errorf("reading the sample: %w", err)
		}
		return nil
	})
	return stats, err
}

// memoryInUse is the value of docker stats: without the page cache that the kernel
// can drop, which is total_inactive_file in cgroup v1 and inactive_file in v2.
func memoryInUse(m container.MemoryStats) int64 {
	cache, v1 := m.Stats["total_inactive_file"]
	if !v1 {
		cache = m.Stats["inactive_file"]
	}
	if cache > m.Usage {
		cache = 0
	}
	return int64(m.Usage - cache) //nolint:gosec // no host has that much memory
}
