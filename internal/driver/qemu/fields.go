// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/record"
)

// pendingFields names the fields of the spec whose values are not yet applied to a server.
func pendingFields(present, wanted record.Settings) []string {
	return fields.Pending(settingsChange{present, wanted})
}

// settingsChange has the settings of a server and those that its spec asks for.
type settingsChange struct{ present, wanted record.Settings }

var fields = slices.Concat(driver.Fields[settingsChange]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive},
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{
		Name: "resource.cpu", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.CPUMilli != c.wanted.CPUMilli },
	},
	{
		Name: "resource.memory", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.MemoryBytes != c.wanted.MemoryBytes },
	},
	{Name: "resource.rootDisk", Support: driver.AppliedLive}, // it may only grow
	{Name: "image", Support: driver.AppliedAtCreation, Parts: []string{"source", "checksum"}},
	{
		// A changed image is pending only while there is no root disk to keep: the next start makes one from that image.
		Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"kernel.source", "kernel.initrd", "kernel.cmdline"},
		Differs: func(c settingsChange) bool {
			return c.present.Image != c.wanted.Image || c.present.Kernel != c.wanted.Kernel
		},
	},
	{Name: "image.pullPolicy", Support: driver.AppliedLive},
	{
		Name: "volumes", Support: driver.AppliedAtRestart, Parts: []string{"name", "readOnly", "mountPath"},
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.Volumes, c.wanted.Volumes) },
	},
	{Name: "volumes.size", Support: driver.AppliedLive}, // it may only grow
	{Name: "volumes.source.image", Support: driver.AppliedAtCreation, Parts: []string{"source", "checksum", "pullPolicy"}},
	{Name: "volumes.source.image.kernel", Support: driver.Unsupported, Hint: "a volume is not booted; leave the kernel out"},
	{Name: "ports.name", Support: driver.AppliedLive},
	{Name: "ports", Support: driver.AppliedLive, Parts: []string{"protocol", "port", "hostPort", "hostIP"}},
	{
		Name: "sshAuthorizedKeys", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.SSHKeys, c.wanted.SSHKeys) },
	},
	{
		Name: "userData", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.UserData != c.wanted.UserData },
	},
	{
		Name: "networkData", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.NetworkData != c.wanted.NetworkData },
	},
	{
		Name: "command", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.Command, c.wanted.Command) },
	},
	{
		Name: "args", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.Args, c.wanted.Args) },
	},
	{
		Name: "env", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c settingsChange) bool { return c.present.Env != c.wanted.Env },
	},
	{
		Name: "workingDir", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.WorkingDir != c.wanted.WorkingDir },
	},
	{
		Name: "user", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.User != c.wanted.User },
	},
	{
		Name: "init", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.Init != c.wanted.Init },
	},
	{
		Name: "stdin", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.Stdin != c.wanted.Stdin },
	},
	{
		Name: "tty", Support: driver.AppliedAtRestart,
		Differs: func(c settingsChange) bool { return c.present.TTY != c.wanted.TTY },
	},
	{
		Name: "sysctls", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.Sysctls, c.wanted.Sysctls) },
	},
	{
		Name: "files", Support: driver.AppliedAtRestart, Parts: []string{"mountPath"}, // their content is live
		Differs: func(c settingsChange) bool { return !slices.Equal(c.present.MountPaths, c.wanted.MountPaths) },
	},
	{Name: "ephemeral", Support: driver.AppliedAtCreation},
}, driver.UnsupportedPodFields[settingsChange]("ephemeral")) // all but ephemeral, which is supported

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return fields.Support() }
