// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/proc"
)

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
	process, err := proc.ReadUsage(inst.PID())
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
