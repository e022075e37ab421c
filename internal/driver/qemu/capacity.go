// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

// checkNewSizes refuses sizes that disks cannot be made with or grown to.
func (inst *instance) checkNewSizes(spec driver.ServerSpec) error {
	if spec.RootDiskBytes > inst.Root.Size {
		if err := inst.driver.disks.CheckSize(rootOrder(spec, disks.ImageSettings{}).SizeField, spec.RootDiskBytes); err != nil {
			return err
		}
	}
	for i, v := range spec.Volumes {
		if v.SizeBytes <= inst.Volumes[v.Name].Size {
			continue
		}
		if err := inst.driver.disks.CheckSize(volumeOrder(i, v).SizeField, v.SizeBytes); err != nil {
			return err
		}
	}
	return nil
}

// diskGauges report by how much disks may still grow, and what is free for that.
type diskGauges struct {
	d                   *Driver
	promised, available *prometheus.Desc
}

// registerDiskGauges registers the gauges; if another driver has registered them, those remain.
func (d *Driver) registerDiskGauges(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	_ = reg.Register(&diskGauges{
		d:         d,
		promised:  prometheus.NewDesc("drover_qemu_disk_promised_bytes", "What the disks of machines may still grow by, released machines included.", nil, nil),
		available: prometheus.NewDesc("drover_qemu_disk_available_bytes", "What is free on the file system of the machines' disks.", nil, nil),
	})
}

// Describe implements prometheus.Collector.
func (g *diskGauges) Describe(all chan<- *prometheus.Desc) {
	all <- g.promised
	all <- g.available
}

// Collect implements prometheus.Collector. It leaves out what cannot be read, since an
// error would suppress all other metrics.
func (g *diskGauges) Collect(all chan<- prometheus.Metric) {
	if holds, err := g.d.disks.FindCapacity(); err == nil {
		all <- prometheus.MustNewConstMetric(g.available, prometheus.GaugeValue, float64(holds.Available))
	}
	if promised, err := g.d.promisedDisk(); err == nil {
		all <- prometheus.MustNewConstMetric(g.promised, prometheus.GaugeValue, float64(promised))
	}
}

// promisedDisk returns what disks of all clusters' machines were promised and do not take
// yet. A server that cannot be read counts as nothing.
func (d *Driver) promisedDisk() (int64, error) {
	instances, err := d.allInstances()
	if err != nil {
		return 0, err
	}
	var promised int64
	for _, inst := range instances {
		r, err := inst.load()
		if err != nil {
			continue
		}
		promised += max(0, r.Root.Size-inst.allocatedBytes(rootDiskFile))
		for name, v := range r.Volumes {
			promised += max(0, v.Size-inst.allocatedBytes(volumeFile(name)))
		}
	}
	return promised, nil
}

// allocatedBytes returns the room that a file takes on its disk.
func (inst *instance) allocatedBytes(file string) int64 {
	var stat syscall.Stat_t
	if err := syscall.Stat(inst.File(file), &stat); err != nil {
		return 0
	}
	const block = 512 // whatever the file system's is
	return stat.Blocks * block
}

// defaultReserve is the minimum that is reserved of the host's memory, and reservePart
// the divisor that gives the reserve of a larger host.
const (
	defaultReserve = 512 << 20
	reservePart    = 20
)

func parseReserve(text string) (func(total int64) int64, error) {
	if text == "" {
		return func(total int64) int64 { return max(defaultReserve, total/reservePart) }, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return nil, fmt.Errorf("--qemu-reserve-memory is %q: it must be a quantity of 0 or more, such as 2Gi; empty means the larger of 5 %% and 512Mi", text)
	}
	return func(int64) int64 { return q.Value() }, nil
}

func demandOf(s *instance, spec driver.ServerSpec, accel string) memory.Demand {
	return memory.Demand{
		Guest: spec.MemoryBytes, Overhead: memory.OverheadOf(accel),
		RanBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// hostMemory returns what reservations check against: what is left of the host's memory
// besides the reserve, or of the control group that Drover and its machines are in.
// Machines of other clusters and released ones count like any other. A machine whose use
// cannot be read, as of another user, counts as if it used nothing yet.
func (d *Driver) hostMemory() (memory.Room, error) {
	host, err := proc.ReadFigures("/proc/meminfo")
	if err != nil {
		return memory.Room{}, err
	}
	kept := d.reserve(host["MemTotal"])
	have := memory.Room{Available: host["MemAvailable"] - kept, Reserve: kept, Where: fmt.Sprintf("on the host (besides %d that --qemu-reserve-memory keeps)", kept)}
	if group, free, err := d.groupMemory(); err == nil && free < have.Available {
		have.Available, have.Reserve, have.Where = free, 0, "below the memory limit of "+group
	}
	have.Promised, err = d.promisedMemory()
	return have, err
}

func (d *Driver) promisedMemory() (map[string]int64, error) {
	instances, err := d.allInstances()
	promised := map[string]int64{}
	for _, inst := range instances {
		if on, err := inst.IsRunning(); err != nil || !on {
			continue
		}
		r, err := inst.load()
		if err != nil {
			continue
		}
		used, _ := proc.ReadUsage(inst.PID()) // nothing where it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes+memory.OverheadOf(r.accelerator())-used.MemoryBytes)
	}
	return promised, err
}
