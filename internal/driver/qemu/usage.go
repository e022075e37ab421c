// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Usage returns what the machines' processes have used, and the memory use that their
// guests report.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, instance.CheckContext(ctx)
	}
	servers, err := d.observeServers(ctx, uids)
	if err != nil {
		return nil, err
	}
	servers = slices.DeleteFunc(servers, func(s *instance.Instance) bool { return !s.IsAlive() || s.Phase != record.PhaseOn })
	samples, errs := make([]driver.Usage, len(servers)), make([]error, len(servers))
	var all errgroup.Group
	all.SetLimit(maxConcurrent)
	for i := range servers {
		all.Go(func() error {
			samples[i], errs[i] = d.sampleUsage(ctx, servers[i])
			return nil
		})
	}
	_ = all.Wait()
	found := samples[:0]
	for i, u := range samples {
		if errs[i] == nil { // else it has ended meanwhile
			found = append(found, u)
		}
	}
	return found, nil
}

func (d *Driver) sampleUsage(ctx context.Context, inst *instance.Instance) (driver.Usage, error) {
	process, err := proc.ReadUsage(inst.PID())
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{UID: inst.UID, Run: inst.Run, At: d.Clock.Now(), CPU: process.CPU, MemoryBytes: process.MemoryBytes}
	if inst.QueryErr == nil {
		if used, ok := inst.GuestMemory(ctx, u.At, inst.IsPaused()); ok {
			u.MemoryBytes = used
		}
	}
	u.MemoryBytes = min(u.MemoryBytes, inst.Settings.MemoryBytes)
	return u, nil
}
