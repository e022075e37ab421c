// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/framework"
)

// wantDisk compares the size of a disk in the server's directory.
func wantDisk(t *testing.T, d *Driver, spec driver.ServerSpec, file string, want int64) {
	t.Helper()
	if info := framework.RunQEMUImg(t, "info", "-U", d.InstanceOf(spec.UID).File(file)); !strings.Contains(info, fmt.Sprintf("(%d bytes)", want)) {
		t.Errorf("%s should have %d bytes: it is %s", file, want, info)
	}
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
		if s.Applied.RootDiskBytes != spec.RootDiskBytes || s.Run != first.Run || len(s.Pending) != 0 {
			t.Errorf("grown by %d it is %+v", more, s)
		}
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
	refuses(t, d, spec, driver.ErrUnsupported, "volumes[0].size (data) is 8388608 bytes", "readOnly", "the server has 4194304")

	spec.Volumes = volumes(8<<20, false)
	if s := reach(t, d, spec, driver.StateRunning); s.Run != first.Run || !slices.Equal(s.Pending, []string{"volumes"}) {
		t.Errorf("before the restart it is %+v", s)
	}
	wantDisk(t, d, spec, instance.VolumeFile("data"), 4<<20)
	spec.RestartRun, spec.StopBy = first.Run, time.Now()
	if s := reach(t, d, spec, driver.StateRunning); s.Run == first.Run || len(s.Pending) != 0 {
		t.Errorf("after the restart it is %+v", s)
	}
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
	h := d.InstanceOf(spec.UID)
	assert.NoError(t, h.Execute(t.Context(), "block_resize", launch.Object{"node-name": launch.RootNode, "size": 16 << 20}, nil))
	spec.RootDiskBytes = 8 << 20
	s := ensure(t, d, spec)
	if s.Applied.RootDiskBytes != 16<<20 {
		t.Errorf("it has %+v", s.Applied)
	}
	wantDisk(t, d, spec, instance.RootDiskFile, 16<<20)
}
