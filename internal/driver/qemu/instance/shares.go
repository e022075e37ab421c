// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"math"
	"runtime"

	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/driver/qemu/shares"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

// findShares returns the resources that the host has for machines, and the claims of this cluster's machines, released ones
// included. It leaves out machines whose record cannot be read.
func (h *Host) findShares() (shares.Amounts, []shares.Claim, error) {
	whole := shares.Amounts{shares.Memory: h.machineMemory(), shares.CPU: int64(runtime.NumCPU()) * 1000 * shares.CPUOvercommit}
	if capacity, err := h.Disks.FindCapacity(); err == nil {
		whole[shares.Disk] = capacity.Total
	}
	instances, err := h.AllInstances()
	claims := make([]shares.Claim, 0, len(instances))
	for _, inst := range instances {
		if s, err := inst.Load(); err == nil && s.ClusterID == h.ClusterID {
			claims = append(claims, shares.Claim{UID: s.UID, Namespace: s.Namespace, Amounts: amountsOf(s)})
		}
	}
	return whole, claims, err
}

// machineMemory returns the memory that all machines together may have, or zero if that is unknown.
func (h *Host) machineMemory() int64 {
	total := int64(math.MaxInt64)
	if host, err := proc.ReadStats("/proc/meminfo"); err == nil {
		total = host["MemTotal"] - h.ReservedOf(host["MemTotal"])
	}
	if group, err := h.FindGroupMemory(); err == nil {
		total = min(total, group.Limit)
	}
	if total == math.MaxInt64 {
		return 0
	}
	return max(0, total)
}

// amountsOf returns the resources of a machine: memory and CPUs if it runs, and its disks. A machine whose run lock cannot be read
// counts as one that runs.
func amountsOf(inst *Instance) shares.Amounts {
	has := shares.Amounts{shares.Disk: DiskBytes(inst.Record)}
	if on, err := inst.Machine.IsRunning(); on || err != nil {
		has[shares.Memory] = inst.Settings.MemoryBytes + memory.OverheadOf(inst.Accelerator)
		has[shares.CPU] = inst.Settings.CPUMilli
	}
	return has
}

// DiskBytes returns the size of all disks of a server.
func DiskBytes(r record.Record) (sum int64) {
	for _, disk := range r.Disks() {
		sum += disk.Size
	}
	return sum
}
