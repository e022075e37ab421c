// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"maps"
	"reflect"
	"slices"

	"cloudnative.tw/drover/internal/driver"
)

// configs are the configuration that a server's last run has, and the one that its spec wants.
type configs struct{ has, wants ServerConfig }

// fields says how each field of a spec is applied. Only the fields for pods are unsupported.
var fields = slices.Concat(driver.Fields[configs]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive}, // through StopBy
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{Name: "resource", Support: driver.AppliedLive, Parts: []string{"cpu", "memory", "rootDisk"}},
	{
		Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"source", "checksum", "kernel.source", "kernel.initrd", "kernel.cmdline"},
		Differs: func(c configs) bool {
			return c.has.Image != c.wants.Image || c.has.ImageChecksum != c.wants.ImageChecksum || !reflect.DeepEqual(c.has.Kernel, c.wants.Kernel)
		},
	},
	{Name: "image.pullPolicy", Support: driver.Ignored},
	{
		Name: "volumes", Support: driver.AppliedAtRestart, Parts: []string{"name", "size", "readOnly", "mountPath", "source.image.source"},
		Differs: func(c configs) bool { return !slices.Equal(c.has.Volumes, c.wants.Volumes) },
	},
	{Name: "volumes.source.image", Support: driver.Ignored, Parts: []string{"checksum", "pullPolicy", "kernel.source", "kernel.initrd", "kernel.cmdline"}},
	{
		Name: "ports", Support: driver.AppliedAtRestart, Parts: []string{"name", "protocol", "port", "hostPort", "hostIP"},
		Differs: func(c configs) bool { return !slices.Equal(c.has.Ports, c.wants.Ports) },
	},
	{
		Name: "sshAuthorizedKeys", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return !slices.Equal(c.has.SSHFingerprints, c.wants.SSHFingerprints) },
	},
	{
		Name: "userData", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.HasUserData != c.wants.HasUserData },
	},
	{
		Name: "networkData", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.HasNetworkData != c.wants.HasNetworkData },
	},
	{
		Name: "command", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return !slices.Equal(c.has.Command, c.wants.Command) },
	},
	{
		Name: "args", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return !slices.Equal(c.has.Args, c.wants.Args) },
	},
	{
		Name: "env", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c configs) bool { return !maps.Equal(c.has.EnvFingerprints, c.wants.EnvFingerprints) },
	},
	{
		Name: "workingDir", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.WorkingDir != c.wants.WorkingDir },
	},
	{
		Name: "user", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.User != c.wants.User },
	},
	{
		Name: "init", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.Init != c.wants.Init },
	},
	{
		Name: "stdin", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.Stdin != c.wants.Stdin },
	},
	{
		Name: "tty", Support: driver.AppliedAtRestart,
		Differs: func(c configs) bool { return c.has.TTY != c.wants.TTY },
	},
	{
		Name: "sysctls", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c configs) bool { return !slices.Equal(c.has.Sysctls, c.wants.Sysctls) },
	},
	{
		Name: "files", Support: driver.AppliedAtRestart, Parts: []string{"mountPath"},
		Differs: func(c configs) bool { return !slices.Equal(c.has.MountPaths, c.wants.MountPaths) },
	},
}, driver.UnsupportedPodFields[configs]())

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return fields.Support() }

// pendingOf returns the fields of spec that apply only after a restart.
func pendingOf(r Record, spec driver.ServerSpec) []string {
	if !r.isOn() || spec.PowerOnly {
		return nil
	}
	return fields.Pending(configs{r.ServerConfig, configOf(spec)})
}
