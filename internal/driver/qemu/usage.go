// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Usage returns what the machines' processes have used, and the memory use that their
// guests report.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, checkContext(ctx)
	}
	servers, err := d.observeServers(ctx, uids)
	if err != nil {
		return nil, err
	}
	servers = slices.DeleteFunc(servers, func(s *instance) bool { return !s.isAlive() || s.Phase != phaseOn })
	samples, errs := make([]driver.Usage, len(servers)), make([]error, len(servers))
	var all errgroup.Group
	all.SetLimit(maxConcurrent)
	for i := range servers {
		all.Go(func() error {
			samples[i], errs[i] = servers[i].sampleUsage(ctx)
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

func (inst *instance) sampleUsage(ctx context.Context) (driver.Usage, error) {
	process, err := proc.ReadUsage(inst.PID())
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{UID: inst.UID, Run: inst.Run, At: inst.driver.Clock.Now(), CPU: process.CPU, MemoryBytes: process.MemoryBytes}
	if inst.silence == nil {
		if used, ok := inst.GuestMemory(ctx, u.At, inst.isPaused()); ok {
			u.MemoryBytes = used
		}
	}
	u.MemoryBytes = min(u.MemoryBytes, inst.Settings.MemoryBytes)
	return u, nil
}
