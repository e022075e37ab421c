// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"net/netip"
	"regexp"
	"runtime"
	"strings"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image"
)

// Limits of a machine.
const (
	maxCPUs   = 255
	maxMemory = 1 << 42
)

// checkSpec rejects a spec that no machine, or not the existing server, can satisfy.
func (c *convergence) checkSpec() error {
	return cmp.Or(checkSatisfiable(c.spec), c.driver.hostPorts.Check(c.spec.Ports), checkDisks(c.inst, c.spec), c.checkNewSizes(), c.checkNewImages(), c.checkCloudImages(), c.claimDisks())
}

// checkSatisfiable rejects a spec that no machine can satisfy.
func checkSatisfiable(spec driver.ServerSpec) error {
	if err := cmp.Or(fields.CheckSupported(spec), checkSizes(spec)); err != nil {
		return err
	}
	for i, p := range spec.Ports {
		if err := checkHostIP(i, p.HostIP); err != nil {
			return err
		}
	}
	for i, v := range spec.Volumes {
		if !volumeName.MatchString(v.Name) {
			return driver.Errorf(driver.ErrInvalid, "spec.volumes[%d].name is %.40q: it must be 1 to 20 lowercase letters, digits and -", i, v.Name)
		}
		if err := config.CheckMountPath(v.MountPath); v.MountPath != "" && err != nil {
			return driver.Errorf(driver.ErrInvalid, "spec.volumes[%d].mountPath %w", i, err)
		}
		if v.Image == nil {
			continue
		}
		ref, field := disks.RefOf(*v.Image), instance.VolumeField(i)
		if ref.Source.IsContainer() {
			return driver.Errorf(driver.ErrInvalid, "spec.%s.source is %q: %s", field, ref.Source, disks.SourceForms(field+".source"))
		}
		if err := disks.CheckRef(field, ref); err != nil {
			return err
		}
	}
	if k := spec.Image.Kernel; k != nil && strings.ContainsRune(k.Cmdline, 0) {
		return driver.Errorf(driver.ErrInvalid, "spec.image.kernel.cmdline is %q: it must not contain a zero byte", k.Cmdline)
	}
	return disks.CheckRef(instance.RootField, disks.RefOf(spec.Image))
}

// volumeName repeats the API's validation, because the name becomes part of a path and of QEMU's options.
var volumeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$`)

func checkSizes(spec driver.ServerSpec) error {
	switch {
	case spec.CPUMilli > maxCPUs*1000:
		return driver.Errorf(driver.ErrInvalid, "spec.resource.cpu is %dm: it must be at most %d", spec.CPUMilli, maxCPUs)
	case spec.MemoryBytes > maxMemory:
		return driver.Errorf(driver.ErrInvalid, "spec.resource.memory is %s: it must be at most %s", kit.FormatBytes(spec.MemoryBytes), kit.FormatBytes(maxMemory))
	}
	return nil
}

// checkHostIP rejects anything that is not an IPv4 address a host can have. Opening the port fails if the host does not
// have the address, which it may get later.
func checkHostIP(i int, text string) error {
	if text == "" {
		return nil
	}
	ip, _ := netip.ParseAddr(text) // the CRD has validated it
	switch {
	case !ip.Is4():
		return driver.Errorf(driver.ErrUnsupported, "spec.ports[%d].hostIP is %.60q: the network of a QEMU machine supports IPv4 only; use an IPv4 address, or leave hostIP out to listen on all addresses", i, text)
	case ip.IsMulticast(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return driver.Errorf(driver.ErrInvalid, "spec.ports[%d].hostIP is %.60q: it must be an IPv4 address of the host, or empty to listen on all addresses", i, text)
	}
	return nil
}

// checkDisks rejects sizes that the existing disks cannot get.
func checkDisks(inst *instance.Instance, spec driver.ServerSpec) error {
	const minimum = "a disk may only grow, and the server's has"
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < inst.Root.Size && inst.KeepsRoot(spec) {
		return driver.Errorf(driver.ErrInvalid, "spec.resource.rootDisk is %s: %s %s", kit.FormatBytes(spec.RootDiskBytes), minimum, kit.FormatBytes(inst.Root.Size))
	}
	for i, v := range spec.Volumes {
		switch have := inst.Volumes[v.Name].Size; {
		case v.SizeBytes < have:
			return driver.Errorf(driver.ErrInvalid, "spec.volumes[%d].size (%s) is %s: %s %s", i, v.Name, kit.FormatBytes(v.SizeBytes), minimum, kit.FormatBytes(have))
		case have > 0 && v.SizeBytes > have && v.ReadOnly:
			return driver.Errorf(driver.ErrUnsupported, "spec.volumes[%d].size (%s) is %s: a read-only volume cannot grow, and the server's has %s; leave readOnly out until the volume has grown",
				i, v.Name, kit.FormatBytes(v.SizeBytes), kit.FormatBytes(have))
		}
	}
	return nil
}

// checkNewSizes rejects sizes that the host does not allow for new and growing disks. It also rejects more CPUs than the
// host has, since virtual CPUs that wait for each other slow a guest down. A machine that already has more CPUs keeps them.
func (c *convergence) checkNewSizes() error {
	if has := int64(runtime.NumCPU()); c.spec.CPUMilli > max(c.inst.Settings.CPUMilli, has*1000) {
		return driver.Errorf(driver.ErrExhausted, "spec.resource.cpu: needed %dm, and the host has %d CPUs", c.spec.CPUMilli, has)
	}
	if c.spec.RootDiskBytes > c.inst.Root.Size {
		if err := c.host.Disks.CheckSize(instance.WantedRoot(c.spec, image.Ref{}).SizeField, c.spec.RootDiskBytes); err != nil {
			return err
		}
	}
	for i, v := range c.spec.Volumes {
		if v.SizeBytes <= c.inst.Volumes[v.Name].Size {
			continue
		}
		if err := c.host.Disks.CheckSize(instance.WantedVolume(i, v).SizeField, v.SizeBytes); err != nil {
			return err
		}
	}
	return nil
}
