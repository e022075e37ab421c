// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestDiskBeyondHost checks that a disk far beyond what the host can hold is refused,
// whichever field has its size, and that an existing one stays in use.
func TestDiskBeyondHost(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	const gib = 1 << 30
	d.Host.Disks.FindCapacity = func() (disks.Capacity, error) { return disks.Capacity{Total: gib, Available: gib / 2}, nil }
	huge := filepath.Join(e.images, "huge.qcow2")
	framework.RunQEMUImg(t, "create", "-q", "-f", "qcow2", huge, "11G")
	volume := func(size int64, image *driver.Image) []driver.Volume {
		return []driver.Volume{{Name: "data", SizeBytes: size, Image: image}}
	}
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		says   string
	}{
		"root":   {func(s *driver.ServerSpec) { s.RootDiskBytes = 11 * gib }, driver.ErrExhausted, "spec.resource.rootDisk: needed 11Gi, and the host's file system holds 1073M"},
		"image":  {func(s *driver.ServerSpec) { s.Image.Source = huge }, driver.ErrExhausted, "spec.resource.rootDisk: needed 11Gi"},
		"volume": {func(s *driver.ServerSpec) { s.Volumes = volume(11*gib, nil) }, driver.ErrExhausted, "spec.volumes[0].size (data): needed 11Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			c.change(&spec)
			refuses(t, d, spec, c.kind, c.says)
			leavesNothing(t, d)
		})
	}
	spec := e.spec()
	spec.RootDiskBytes, spec.Volumes = 10*gib, volume(10*gib, nil)
	reach(t, d, spec, driver.StateRunning)
	grown := spec
	grown.RootDiskBytes = 11 * gib
	refuses(t, d, grown, driver.ErrExhausted, "spec.resource.rootDisk: needed")
	d.Host.Disks.FindCapacity = func() (disks.Capacity, error) { return disks.Capacity{Total: 1, Available: 1}, nil }
	reach(t, d, spec, driver.StateRunning) // as it is
}

// TestDiskGauges checks the gauges of the promised and of the available space, including
// machines that are off or released.
func TestDiskGauges(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o, registry := e.options(), prometheus.NewRegistry()
	o.Registerer = registry
	d := openWith(t, o)
	d.Host.Disks.FindCapacity = func() (disks.Capacity, error) { return disks.Capacity{Total: 1 << 40, Available: 1 << 30}, nil }
	spec, released := e.spec(), e.spec()
	spec.RootDiskBytes, spec.Volumes = 1<<40, []driver.Volume{{Name: "data", SizeBytes: 1 << 38}}
	released.Power, released.RootDiskBytes = driver.PowerOff, 1<<39
	boots(t, d, spec, "drover guest 1 A") // which makes its volume
	off(t, d, spec)
	reach(t, d, released, driver.StateStopped)
	assert.NoError(t, d.Delete(t.Context(), released.Target, true))
	if n, err := testutil.GatherAndCount(registry, "drover_qemu_disk_promised_bytes", "drover_qemu_disk_available_bytes"); n != 2 || err != nil {
		t.Fatalf("%d of the gauges are shown, want 2: %v", n, err)
	}
	families, err := registry.Gather()
	assert.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	const all, most = 1<<40 + 1<<39 + 1<<38, 1 << 21
	if promised := got["drover_qemu_disk_promised_bytes"]; promised >= all || promised < all-most {
		t.Errorf("promised are %v bytes, want %d, less what the disks take", promised, all)
	}
	available := got["drover_qemu_disk_available_bytes"]
	assert.True(t, available == 1<<30, "available are %v bytes", available)
	openWith(t, o) // in the same process, with the same registry
}

// wantDisk compares the size of a disk in the server's directory.
func wantDisk(t *testing.T, d *Driver, spec driver.ServerSpec, file string, want int64) {
	t.Helper()
	assert.Contains(t, fmt.Sprintf("%s should have %d bytes: it", file, want),
		framework.RunQEMUImg(t, "info", "-U", d.Host.InstanceOf(spec.UID).Machine.File(file)), fmt.Sprintf("(%d bytes)", want))
}

// TestGrowToAnySize checks that disks have whole sectors, whatever the size.
func TestGrowToAnySize(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.RootDiskBytes = 5 << 20
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1<<20 + 1}}
	first := reach(t, d, spec, driver.StateRunning)
	wantDisk(t, d, spec, instance.VolumeFile("data"), 1<<20+512)
	for _, more := range []int64{1, 2, 513} {
		spec.RootDiskBytes = 5<<20 + more
		spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2<<20 + more}}
		s := reach(t, d, spec, driver.StateRunning)
		assert.True(t, s.Applied.RootDiskBytes == spec.RootDiskBytes && s.Run == first.Run && len(s.Pending) == 0, "grown by %d it is %+v", more, s)
		whole := (more + 511) / 512 * 512
		wantDisk(t, d, spec, instance.RootDiskFile, 5<<20+whole)
		wantDisk(t, d, spec, instance.VolumeFile("data"), 2<<20+whole)
	}
}

// TestGrowReadOnly checks that a read-only volume does not grow, and that the error names
// the cause. It grows with the restart that makes it writable.
func TestGrowReadOnly(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	volumes := func(size int64, readOnly bool) []driver.Volume {
		return []driver.Volume{{Name: "data", SizeBytes: size, ReadOnly: readOnly}}
	}
	spec := e.spec()
	spec.Volumes = volumes(4<<20, true)
	first := reach(t, d, spec, driver.StateRunning)
	spec.Volumes = volumes(8<<20, true)
	refuses(t, d, spec, driver.ErrUnsupported, "spec.volumes[0].size (data) is 8Mi", "readOnly", "the server's has 4Mi")

	spec.Volumes = volumes(8<<20, false)
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Run == first.Run && slices.Equal(s.Pending, []string{"volumes"}), "before the restart it is %+v", s)
	wantDisk(t, d, spec, instance.VolumeFile("data"), 4<<20)
	spec.RestartRun, spec.StopBy = first.Run, time.Now()
	s = reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Run != first.Run && len(s.Pending) == 0, "after the restart it is %+v", s)
	wantDisk(t, d, spec, instance.VolumeFile("data"), 8<<20)
}

// TestGrowNeverShrinks checks that a disk whose new size could not be recorded does not
// lose its end to a smaller size.
func TestGrowNeverShrinks(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.RootDiskBytes = 2 << 20
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	assert.NoError(t, h.Machine.Execute(t.Context(), "block_resize", launch.Object{"node-name": launch.RootNode, "size": 16 << 20}, nil))
	spec.RootDiskBytes = 8 << 20
	s := ensure(t, d, spec)
	assert.True(t, s.Applied.RootDiskBytes == 16<<20, "it has %+v", s.Applied)
	wantDisk(t, d, spec, instance.RootDiskFile, 16<<20)
}
