// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/test/assert"
)

// TestNamespacesShareAHost checks that a namespace which has all of its share gets nothing more, also of a Drover that is
// started again, that others get theirs, and that a machine runs on whose share was lowered.
func TestNamespacesShareAHost(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	of := func(namespace string) driver.ServerSpec {
		spec := e.spec()
		spec.Namespace = namespace
		return spec
	}
	first, second, third := of("tenant-a"), of("tenant-a"), of("tenant-a")
	needed := first.MemoryBytes + memory.OverheadTCG
	o.NamespaceMemory = fmt.Sprint(2*needed + 1)
	d := openWith(t, o)
	run := reach(t, d, first, driver.StateRunning).Run
	reach(t, d, second, driver.StateRunning)
	for name, d := range map[string]*Driver{"first": d, "started again": openWith(t, o)} {
		refuses(t, d, third, driver.ErrExhausted, "spec.resource.memory: needed", "the namespace tenant-a has", "--qemu-namespace-memory is "+o.NamespaceMemory)
		assert.True(t, d.Host.InstanceOf(third.UID).IsGone(), "the Drover %s has made something", name)
	}
	reach(t, d, of("tenant-b"), driver.StateRunning)
	foreign := o
	foreign.ClusterID = "cluster-2"
	other := openWith(t, foreign)
	spec := of("tenant-a")
	reach(t, other, spec, driver.StateRunning)
	gone(t, other, spec)

	lowered := o
	lowered.NamespaceMemory = "1Mi"
	low := openWith(t, lowered)
	s := ensure(t, low, first)
	assert.True(t, s.Run == run && s.State == driver.StateRunning, "with a lower share it is %+v", s)
	restart := first
	restart.RestartRun, restart.StopBy = run, time.Now()
	refuses(t, low, restart, driver.ErrExhausted, "--qemu-namespace-memory is 1Mi")
	s = ensure(t, d, first)
	assert.True(t, s.Run == run && s.State == driver.StateRunning, "after a restart that was refused it is %+v", s)
	gone(t, d, second)
	reach(t, d, third, driver.StateRunning)
}

// TestNamespacesShareADisk checks that disks count with their size, and volumes from the beginning.
func TestNamespacesShareADisk(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.NamespaceDisk = "3Gi"
	d := openWith(t, o)
	spec, other := e.spec(), e.spec()
	spec.RootDiskBytes, other.RootDiskBytes = 1<<30, 1<<30
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 30}}
	run := reach(t, d, spec, driver.StateRunning).Run
	other.Volumes = spec.Volumes
	refuses(t, d, other, driver.ErrExhausted, "spec.resource.rootDisk and spec.volumes: needed 2Gi", "has 2147M in use of its share of 3221M (--qemu-namespace-disk is 3Gi)")
	assert.True(t, d.Host.InstanceOf(other.UID).IsGone(), "something was made")
	other.Volumes = nil
	other.Power = driver.PowerOff
	ensure(t, d, other)
	grown := spec
	grown.RootDiskBytes = 2 << 30
	refuses(t, d, grown, driver.ErrExhausted, "needed 3Gi", "has 1073M in use")
	gone(t, d, other)
	s := ensure(t, d, grown)
	assert.True(t, s.Run == run && s.Applied.RootDiskBytes == grown.RootDiskBytes, "with more room it is %+v", s)
}
