// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"os"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// maxDisk is larger than any disk in use.
	maxDisk = 1 << 50
	// maxOvercommit is how many times the size of the host's file system one disk may have.
	// Disks take only the room of what was written to them, so their sum may exceed the
	// host, but a guest relies on its disk's size.
	maxOvercommit = 10
)

// capacity is what the file system of the machines' disks holds, and has free.
type capacity struct{ total, available int64 }

// diskCapacity returns the capacity that disks grow into.
func (d *Driver) diskCapacity() (capacity, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.dir.Path(vmsDir), &fs); err != nil {
		return capacity{}, os.NewSyscallError("statfs", err)
	}
	return capacity{int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize}, nil //nolint:gosec // of a file system
}

// checkNewSizes refuses sizes that disks cannot be made with or grown to.
func (inst *instance) checkNewSizes(spec driver.ServerSpec) error {
	if spec.RootDiskBytes > inst.Root.Size {
		if err := inst.driver.checkSize(rootOrder(spec, imageSettings{}).sizeField, spec.RootDiskBytes); err != nil {
			return err
		}
	}
	for i, v := range spec.Volumes {
		if v.SizeBytes <= inst.Volumes[v.Name].Size {
			continue
		}
		if err := inst.driver.checkSize(volumeOrder(i, v).sizeField, v.SizeBytes); err != nil {
			return err
		}
	}
	return nil
}

// checkSize refuses a disk far beyond what the host can hold. If the host's capacity is
// unknown, it allows the disk.
func (d *Driver) checkSize(field string, size int64) error {
	holds, err := d.capacity()
	if err != nil || size/maxOvercommit <= holds.total {
		return nil //nolint:nilerr // as said
	}
	return driver.Errorf(driver.ErrExhausted, "%s: needed %d bytes, and the host's file system holds %d: a disk may have at most %d times that", field, size, holds.total, maxOvercommit)
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
	if holds, err := g.d.capacity(); err == nil {
		all <- prometheus.MustNewConstMetric(g.available, prometheus.GaugeValue, float64(holds.available))
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
