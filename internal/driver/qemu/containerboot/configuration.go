// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containerboot prepares the boot of a container image as a machine: Drover's kernel, and the configuration for
// Drover's program in the guest.
//
// Start with Configure.
package containerboot

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/control"
)

// minContainerMemory is the memory in bytes that the kernel, Drover's program and a small command need.
const minContainerMemory = 128 << 20

// CheckFields rejects fields that have no effect for the kind of the spec's image: a container image or a disk.
func CheckFields(spec driver.ServerSpec, isContainer bool) error {
	const forDisks, forContainers = "this field is for disk images, and nothing in a container image reads it; leave it out", "this field is for container images, and the image is a disk image; leave it out"
	if isContainer && spec.MemoryBytes < minContainerMemory {
		return driver.Errorf(driver.ErrInvalid, "spec.resource.memory is %s: a container image needs at least %s", kit.FormatBytes(spec.MemoryBytes), kit.FormatBytes(minContainerMemory))
	}
	hasMountPath := slices.ContainsFunc(spec.Volumes, func(v driver.Volume) bool { return v.MountPath != "" })
	for _, f := range []struct {
		name         string
		isSet, isFor bool // isFor says whether the field has an effect for this kind of image
		hint         string
	}{
		{"image.kernel", spec.Image.Kernel != nil, !isContainer, "a container image boots the kernel of Drover; leave it out"},
		{"userData", !spec.UserData.IsZero(), !isContainer, forDisks},
		{"networkData", !spec.NetworkData.IsZero(), !isContainer, forDisks},
		{"sshAuthorizedKeys", len(spec.SSHKeys) > 0, !isContainer, forDisks},
		{"command", len(spec.Command) > 0, isContainer, forContainers},
		{"args", len(spec.Args) > 0, isContainer, forContainers},
		{"env", len(spec.Env) > 0, isContainer, forContainers},
		{"workingDir", spec.WorkingDir != "", isContainer, forContainers},
		{"user", spec.User != "", isContainer, forContainers},
		{"init", spec.Init != "", isContainer, forContainers},
		{"stdin", spec.Stdin, isContainer, forContainers},
		{"tty", spec.TTY, isContainer, forContainers},
		{"sysctls", len(spec.Sysctls) > 0, isContainer, forContainers},
		{"volumes[].mountPath", hasMountPath, isContainer, "the guest of a disk image mounts its volumes itself; leave it out"},
		{"files", len(spec.Files) > 0, isContainer, forContainers},
	} {
		if f.isSet && !f.isFor {
			return driver.Errorf(driver.ErrUnsupported, "spec.%s: %s", f.name, f.hint)
		}
	}
	return nil
}

// Configure returns a file in memory with the configuration for Drover's program in the guest. The file may contain Secrets.
func Configure(spec driver.ServerSpec, imageConfig image.RunConfig, network control.NetworkConfig, nonce []byte) (*os.File, error) {
	hostname, _, _ := strings.Cut(spec.Name, ".")
	c := config.Config{
		Hostname: hostname, Args: argumentsOf(spec, imageConfig), Env: slices.Clone(imageConfig.Env), User: cmp.Or(spec.User, imageConfig.User), Init: string(spec.Init), Stdin: spec.Stdin, TTY: spec.TTY,
		WorkingDir: cmp.Or(spec.WorkingDir, imageConfig.WorkingDir), StopSignal: imageConfig.StopSignal, GraceSeconds: graceOf(spec.GracePeriod),
		Network: guestNetwork(network), Disks: config.Disks{Root: config.RootSerial, Data: config.DataSerial, Modules: config.ModulesSerial}, Nonce: nonce,
	}
	for _, e := range spec.Env {
		c.Env = append(c.Env, e.Name+"="+e.Value.Reveal())
	}
	for _, s := range spec.Sysctls {
		c.Sysctls = append(c.Sysctls, config.Sysctl(s))
	}
	for _, v := range spec.Volumes {
		c.Volumes = append(c.Volumes, config.Volume{Serial: v.Name, Path: v.MountPath, ReadOnly: v.ReadOnly})
	}
	for _, p := range imageConfig.Volumes {
		c.ImageVolumes = append(c.ImageVolumes, path.Clean(p))
	}
	if len(spec.Files) > 0 {
		c.Disks.Files = config.FilesSerial
	}
	text, err := config.Encode(c)
	if err != nil {
		return nil, driver.Errorf(driver.ErrInvalid, "spec.image cannot be run: %w", err)
	}
	return sealedFile(text)
}

// OpenFiles returns the disk in memory with the folders of a spec, open for reading; nil for a spec without folders. It
// contains Secrets, so that it must not be a file of the host.
func OpenFiles(spec driver.ServerSpec) (*os.File, error) {
	if len(spec.Files) == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	if spec.FilesErr != nil {
		return nil, spec.FilesErr
	}
	var all []mounts.Content
	for _, m := range spec.Files {
		all = append(all, ContentOf(m))
	}
	disk, err := mounts.Encode(all)
	if err != nil {
		return nil, driver.Errorf(driver.ErrInvalid, "spec.files: %w", err)
	}
	f, err := sealedFile(disk)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // QEMU takes a descriptor for reading alone
}

// FilesBytes returns about how much memory the disk of OpenFiles takes until the run ends.
func FilesBytes(spec driver.ServerSpec) (size int64) {
	for _, m := range spec.Files {
		for _, f := range m.Files {
			size += int64(len(f.Path) + base64.StdEncoding.EncodedLen(len(f.Data.Reveal())))
		}
	}
	return size
}

// ContentOf returns a folder in the form in which the guest reads it.
func ContentOf(m driver.FileMount) mounts.Content {
	c := mounts.Content{Path: m.MountPath, Revision: m.Revision}
	for _, f := range m.Files {
		c.Files = append(c.Files, mounts.File{Path: f.Path, Mode: uint32(f.Mode.Perm()), Data: []byte(f.Data.Reveal())})
	}
	return c
}

// guestNetwork returns the configuration of the guest's network interface.
func guestNetwork(edge control.NetworkConfig) config.Network {
	return config.Network{
		Address: edge.Address, Gateway: edge.Gateway(), MTU: edge.MTU, Resolvers: []netip.Addr{edge.Gateway()}, Search: []string{edge.Domain},
	}
}

// argumentsOf returns the command line by the rules of a pod: the spec's command also replaces the image's arguments.
func argumentsOf(spec driver.ServerSpec, config image.RunConfig) []string {
	entrypoint, args := config.Entrypoint, config.Cmd
	if len(spec.Command) > 0 {
		entrypoint, args = spec.Command, nil
	}
	if len(spec.Args) > 0 {
		args = spec.Args
	}
	return slices.Concat(entrypoint, args)
}

// graceOf returns how many seconds the guest waits for the command to end, before it kills the command. The host waits a
// little longer for the guest, so that the guest can still report the killed command.
func graceOf(period time.Duration) int64 {
	const reportWithin = 2 * time.Second
	return max(1, min(int64((period-reportWithin)/time.Second), config.MaxGraceSeconds))
}

// sealedFile returns a file in memory that can no longer be changed.
func sealedFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "config")
	if _, err = f.Write(content); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
