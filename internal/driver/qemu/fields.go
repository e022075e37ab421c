// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/record"
)

// pendingFields names the fields of the spec that the settings of a server do not have yet.
func pendingFields(present, wanted record.Settings) []string {
	return fields.Pending(settingsChange{present, wanted})
}

// settingsChange are the settings of a server and those of its spec.
type settingsChange struct{ has, wants record.Settings }

var fields = slices.Concat(driver.Fields[settingsChange]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive},
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{
		Name: "resource.cpu", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.has.CPUMilli != c.wants.CPUMilli },
	},
	{
		Name: "resource.memory", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.has.MemoryBytes != c.wants.MemoryBytes },
	},
	{Name: "resource.rootDisk", Support: driver.AppliedLive}, // it may only grow
	{Name: "image", Support: driver.AppliedAtCreation, Parts: []string{"source", "checksum"}},
	{
		// The image itself differs only for a server whose root disk is not made yet.
		Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"kernel.source", "kernel.initrd", "kernel.cmdline"},
		Differs: func(c settingsChange) bool { return c.has.Image != c.wants.Image || c.has.Kernel != c.wants.Kernel },
	},
	{Name: "image.pullPolicy", Support: driver.AppliedLive},
	{
		Name: "volumes", Support: driver.AppliedAtRestart, Parts: []string{"name", "readOnly"},
		Differs: func(c settingsChange) bool { return !slices.Equal(c.has.Volumes, c.wants.Volumes) },
	},
	{Name: "volumes.size", Support: driver.AppliedLive}, // it may only grow
	{Name: "volumes.source.image", Support: driver.AppliedAtCreation, Parts: []string{"source", "checksum", "pullPolicy"}},
	{Name: "volumes.source.image.kernel", Support: driver.Unsupported, Hint: "a volume is not booted; leave it out"},
	{Name: "ports.name", Support: driver.AppliedLive},
	{Name: "ports", Support: driver.AppliedLive, Parts: []string{"protocol", "port", "hostPort", "hostIP"}},
	{
		Name: "sshAuthorizedKeys", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.has.SSHKeys, c.wants.SSHKeys) },
	},
	{
		Name: "userData", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.has.UserData != c.wants.UserData },
	},
	{
		Name: "networkData", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.has.NetworkData != c.wants.NetworkData },
	},
	{
		Name: "command", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.has.Command, c.wants.Command) },
	},
	{
		Name: "args", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.has.Args, c.wants.Args) },
	},
	{
		Name: "env", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c settingsChange) bool { return c.has.Env != c.wants.Env },
	},
	{
		Name: "workingDir", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.has.WorkingDir != c.wants.WorkingDir },
	},
	{Name: "ephemeral", Support: driver.AppliedAtCreation},
}, driver.UnsupportedPodFields[settingsChange]("ephemeral"))

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return fields.Support() }
