// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/proc"
)

// maxConcurrent is how many servers are observed concurrently.
const maxConcurrent = 16

// List returns the servers with the given UIDs, or all servers if no UID is given.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	return d.fetches.AddTo(func() ([]driver.Server, error) {
		found, err := d.observeServers(ctx, uids)
		if err != nil {
			return nil, err
		}
		if len(uids) == 0 {
			d.Host.ForgetMissing(found)
		}
		servers := make([]driver.Server, len(found))
		for n, s := range found {
			servers[n] = s.Report()
		}
		return servers, nil
	}, uids...)
}

// observeServers observes this cluster's servers with the given UIDs, or all of its servers
// if no UID is given. It includes released servers, and servers with a broken record, which
// may belong to any cluster.
func (d *Driver) observeServers(ctx context.Context, uids []types.UID) ([]*instance.Instance, error) {
	instances, err := listInstances(ctx, d.Host, uids)
	if err != nil {
		return nil, err
	}
	all, err := observeEach(ctx, instances)
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	named := len(uids) > 0
	var ours []*instance.Instance
	places := map[driver.Target]int{}
	for _, s := range all {
		if (s.ClusterID != "" && s.ClusterID != d.Host.ClusterID) || (named && s.Retained) {
			continue
		}
		// A server that was released in between is found twice.
		who := driver.Target{UID: s.UID, ID: s.ID}
		if i, met := places[who]; met {
			ours[i] = s
			continue
		}
		places[who] = len(ours)
		ours = append(ours, s)
	}
	return ours, d.Host.StateDir.Reach() // which may have gone meanwhile
}

// listInstances returns the servers that have a directory, of the UIDs or all. The released
// ones are last, so that a server that is being released is found in at least one place.
func listInstances(ctx context.Context, host *instance.Host, uids []types.UID) ([]*instance.Instance, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	if err := host.StateDir.Reach(); err != nil {
		return nil, err
	}
	if len(uids) > 0 {
		return host.InstancesOf(uids)
	}
	return host.AllInstances()
}

// observeEach observes servers, and leaves out those that are gone meanwhile. A broken
// server does not prevent the others from being listed.
func observeEach(ctx context.Context, instances []*instance.Instance) ([]*instance.Instance, error) {
	servers, errs := kit.Each(ctx, maxConcurrent, instances, func(inst *instance.Instance) (*instance.Instance, error) {
		return inst.ObserveWithin(ctx, instance.ListQueryWithin)
	})
	found := servers[:0]
	for i, s := range servers {
		switch {
		case errs[i] == nil, instance.IsBroken(errs[i]):
			found = append(found, s)
		case !errors.Is(errs[i], fs.ErrNotExist):
			return nil, errs[i]
		}
	}
	return found, nil
}

// Usage returns what the machines' processes have used, and the memory use that their
// guests report.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, kit.CheckContext(ctx)
	}
	servers, err := d.observeServers(ctx, uids)
	if err != nil {
		return nil, err
	}
	servers = slices.DeleteFunc(servers, func(s *instance.Instance) bool { return !s.IsAlive() || s.Phase != record.PhaseOn })
	samples, errs := kit.Each(ctx, maxConcurrent, servers, sampleUsage)
	found := samples[:0]
	for i, u := range samples {
		if errs[i] == nil { // else it has ended meanwhile
			found = append(found, u)
		}
	}
	return found, nil
}

func sampleUsage(inst *instance.Instance) (driver.Usage, error) {
	process, err := proc.ReadUsage(inst.Machine.PID())
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{UID: inst.UID, Run: inst.Run, At: inst.Host.Clock.Now(), CPU: process.CPU, MemoryBytes: process.MemoryBytes}
	if inst.GuestMemoryBytes > 0 {
		u.MemoryBytes = inst.GuestMemoryBytes
	}
	u.MemoryBytes = min(u.MemoryBytes, inst.Settings.MemoryBytes)
	return u, nil
}
