// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/shares"
	"cloudnative.tw/drover/internal/image"
)

// diskGauges report by how much disks may still grow, and how much space is free for that.
type diskGauges struct {
	host                *instance.Host
	promised, available *prometheus.Desc
}

// registerDiskGauges registers the gauges; if another driver has registered them, those remain.
func registerDiskGauges(reg prometheus.Registerer, host *instance.Host) {
	if reg == nil {
		return
	}
	_ = reg.Register(&diskGauges{
		host:      host,
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
	if holds, err := g.host.Disks.FindCapacity(); err == nil {
		all <- prometheus.MustNewConstMetric(g.available, prometheus.GaugeValue, float64(holds.Available))
	}
	if promised, err := folder.PromisedDisk(g.host); err == nil {
		all <- prometheus.MustNewConstMetric(g.promised, prometheus.GaugeValue, float64(promised))
	}
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

// claimRun reserves the memory and the CPUs of the server's next run in its namespace's share. A server that is to be off
// needs none.
func (c *convergence) claimRun(ctx context.Context) error {
	if c.spec.Power == driver.PowerOff {
		return nil
	}
	accel, _ := c.host.Accelerator.Choose(ctx) // the start reports its error
	demand := instance.DemandOf(c.inst, c.spec, accel)
	return c.takeShare(shares.Amounts{shares.Memory: demand.Guest + demand.Overhead, shares.CPU: c.spec.CPUMilli})
}

// claimDisks reserves the sizes of the server's disks in its namespace's share, if they are more than it has.
func (c *convergence) claimDisks() error {
	wanted := c.wantedDisk()
	if wanted <= instance.DiskBytes(c.inst.Record) {
		return nil
	}
	return c.takeShare(shares.Amounts{shares.Disk: wanted})
}

func (c *convergence) takeShare(amounts shares.Amounts) error {
	return c.host.Shares.Take(shares.Claim{UID: c.spec.UID, Namespace: c.spec.Namespace, Amounts: amounts})
}

// wantedDisk returns the size of all disks of the server once it is as the spec says. Volumes that the spec no longer names
// stay.
func (c *convergence) wantedDisk() int64 {
	root := max(c.inst.Root.Size, c.spec.RootDiskBytes)
	if !c.inst.KeepsRoot(c.spec) {
		root = c.host.Disks.SizeOf(instance.WantedRoot(c.spec, c.rootImage()))
	}
	sum := root + instance.DiskBytes(c.inst.Record) - c.inst.Root.Size
	for i, v := range c.spec.Volumes {
		wanted, made := instance.WantedVolume(i, v), c.inst.Volumes[v.Name].Size
		if made > 0 {
			wanted.Image = image.Ref{}
		}
		sum += max(0, c.host.Disks.SizeOf(wanted)-made)
	}
	return sum
}
