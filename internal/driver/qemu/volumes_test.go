// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// TestMountPathOfOldVolume checks that a volume which no guest has written to gets a file system when it gets a mountPath,
// and that one with other data stays as it is, and ends the machine.
func TestMountPathOfOldVolume(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes three boots; the gate has the guest's part in package boot")
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c"}})
	c.spec.Volumes = []driver.Volume{{Name: "blank", SizeBytes: 64 << 20}, {Name: "written", SizeBytes: 64 << 20}}
	c.spec.RestartPolicy = driver.RestartNever
	run := func(command string) *driver.Exit {
		c.spec.Power, c.spec.Args = driver.PowerOn, []string{command}
		reach(t, c.d, c.spec, driver.StateRunning)
		exit := reach(t, c.d, c.spec, driver.StateStopped).Exit
		c.spec.Power = driver.PowerOff
		reach(t, c.d, c.spec, driver.StateStopped)
		assert.Require(t, exit != nil, "the machine has not ended by itself")
		return exit
	}
	exit := run("echo x >/dev/disk/by-id/virtio-written && busybox sync && exit 3")
	assert.True(t, exit.Code == 3, "the first run ends with %+v", exit)
	c.spec.Volumes[0].MountPath = "/srv/blank"
	exit = run("busybox grep ' /srv/blank ext4 ' /proc/mounts && exit 4")
	assert.True(t, exit.Code == 4, "with a mountPath it ends with %+v", exit)
	c.spec.Volumes[1].MountPath = "/srv/written"
	exit = run("exit 5")
	assert.True(t, exit.Code == 128, "with a volume that has other data it ends with %+v", exit)
	assert.Contains(t, "the message", exit.Message, "the volume written: its disk lacks an ext4 file system")
}
