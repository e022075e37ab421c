// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/internal/driver/docker/volumes"
)

// checkSpec rejects a spec that no container can have.
func (o Options) checkSpec(spec driver.ServerSpec) error {
	if scheme, _, ok := strings.Cut(o.imageReference(spec), "://"); ok {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source begins with %q, which the docker driver does not take: it must be an image reference such as nginx or registry.example.org/team/app:v1", scheme+"://")
	}
	if _, err := reference.ParseAnyReference(o.imageReference(spec)); err != nil {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: %q is not an image reference such as nginx or registry.example.org/team/app:v1: %w", o.imageReference(spec), err)
	}
	return cmp.Or(fields.CheckSupported(spec), volumes.Check(spec))
}

func formatCPU(milli int64) string {
	return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64)
}

// Labels of a container. All are set on every one, so that labels of the image
// cannot take their place.
const (
	LabelUID       = "cloudnative.tw/uid"
	LabelNamespace = "cloudnative.tw/namespace"
	LabelName      = "cloudnative.tw/name"
	LabelCluster   = "cloudnative.tw/cluster"
	LabelEpoch     = "cloudnative.tw/epoch"
	// LabelImage, LabelPorts, LabelVolumes and LabelRootDisk record what was requested at
	// creation, to detect later whether the spec has changed.
	LabelImage    = "cloudnative.tw/image"
	LabelPorts    = "cloudnative.tw/ports"
	LabelVolumes  = "cloudnative.tw/volumes"
	LabelRootDisk = "cloudnative.tw/root-disk"
)

// RetainedSuffix ends the name of a released container. Docker cannot change a
// label, and a rename is atomic.
const RetainedSuffix = ".retained"

func isRetained(name string) bool { return strings.HasSuffix(name, RetainedSuffix) }

func uidFilter(uid types.UID) string { return LabelUID + "=" + string(uid) }

// specChange is a container and the spec that it shall have.
type specChange struct {
	has          *instance
	wants        driver.ServerSpec
	wantsProcess process.Requested
}

// hasOtherImage compares with the image that was requested at creation, which no engine
// normalises. An empty image means the default at that time, so a new default is not a
// change of the spec.
func (c specChange) hasOtherImage() bool {
	image := c.wants.Image.Source
	return image != "" && fullReference(image) != fullReference(c.has.image)
}

func (c specChange) hasOtherPorts() bool { return portsText(c.wants.Ports) != c.has.ports }

var fields = slices.Concat(driver.Fields[specChange]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive}, // by StopBy; a host's shutdown is the engine's
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{Name: "resource", Support: driver.AppliedLive, Parts: []string{"cpu", "memory"}},
	{Name: "resource.rootDisk", Support: driver.Ignored},
	{Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"source"}, Differs: specChange.hasOtherImage},
	{Name: "image.pullPolicy", Support: driver.AppliedLive},
	{Name: "ports", Support: driver.AppliedAtRestart, Parts: []string{"protocol", "port", "hostPort", "hostIP"}, Differs: specChange.hasOtherPorts},
	{Name: "ports.name", Support: driver.AppliedLive}, // used only by Drover
	{
		Name: "command", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.Command != c.wantsProcess.Command },
	},
	{
		Name: "args", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.Args != c.wantsProcess.Args },
	},
	{
		Name: "env", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c specChange) bool { return c.has.process.Env != c.wantsProcess.Env },
	},
	{
		Name: "workingDir", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.WorkingDir != c.wantsProcess.WorkingDir },
	},
	{
		Name: "user", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.User != c.wantsProcess.User },
	},
	{
		Name: "init", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.Init != c.wantsProcess.Init },
	},
	{
		Name: "stdin", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.Stdin != c.wantsProcess.Stdin },
	},
	{
		Name: "tty", Support: driver.AppliedAtRestart,
		Differs: func(c specChange) bool { return c.has.process.TTY != c.wantsProcess.TTY },
	},
	{
		Name: "sysctls", Support: driver.AppliedAtRestart, Parts: []string{"name", "value"},
		Differs: func(c specChange) bool { return c.has.process.Sysctls != c.wantsProcess.Sysctls },
	},
	{Name: "image.checksum", Support: driver.Unsupported, Hint: "the docker driver cannot check it; name the image by digest (name@sha256:...) or leave it out"},
	{Name: "image.kernel", Support: driver.Unsupported, Hint: "containers run on the host's kernel; use driver qemu or leave it out"},
	{
		Name: "volumes", Support: driver.AppliedAtRestart, Parts: []string{"name", "readOnly", "mountPath"},
		Differs: func(c specChange) bool { return c.has.volumes != volumes.Text(c.wants) },
	},
	{Name: "volumes.size", Support: driver.Ignored},
	{Name: "volumes.source.image", Support: driver.Unsupported, Hint: "the docker driver fills a volume from the server's image; use driver qemu or leave it out"},
	{Name: "files", Support: driver.Unsupported, Hint: "the docker driver cannot replace files in a folder in memory as a whole; use driver qemu, or leave it out and pass values by env"},
	{Name: "userData", Support: driver.Unsupported, Hint: "the docker driver cannot run cloud-init; use driver qemu or leave it out"},
	{Name: "networkData", Support: driver.Unsupported, Hint: "the docker driver cannot run cloud-init; use driver qemu or leave it out"},
	{Name: "sshAuthorizedKeys", Support: driver.Unsupported, Hint: "the docker driver cannot install SSH keys; use driver qemu or leave it out"},
}, driver.UnsupportedPodFields[specChange]())

// SupportedFields implements driver.FieldDeclarer.
func (d *Driver) SupportedFields() map[string]driver.Support { return fields.Support() }

// pendingFields returns the fields of the spec that need a new container.
func pendingFields(i *instance, spec driver.ServerSpec) []string {
	if spec.PowerOnly {
		return nil
	}
	return fields.Pending(specChange{has: i, wants: spec, wantsProcess: process.RequestedBy(spec)})
}

// fullReference returns one text for all ways to write a reference: nginx is
// docker.io/library/nginx:latest.
func fullReference(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}
