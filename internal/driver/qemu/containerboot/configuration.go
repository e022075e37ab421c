// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containerboot prepares the boot of a container image as a machine: the kernel of Drover, and the configuration for
// the program in the guest.
//
// Start with Configure.
package containerboot

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/control"
)

// minContainerMemory is the memory that the kernel, Drover's program and a small command need.
const minContainerMemory = 128 << 20

// CheckFields refuses fields that mean nothing for the image of a spec, which is a container image or a disk.
func CheckFields(spec driver.ServerSpec, isContainer bool) error {
	const forDisks, forContainers = "it is for the image of a disk, and a container image has nothing that reads it; leave it out", "it is for container images, and this image is a disk; leave it out"
	if isContainer && spec.MemoryBytes < minContainerMemory {
		return driver.Errorf(driver.ErrInvalid, "spec.resource.memory is %s: a container image needs at least %s", kit.FormatBytes(spec.MemoryBytes), kit.FormatBytes(minContainerMemory))
	}
	for _, f := range []struct {
		name         string
		isSet, isFor bool
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
	} {
		if f.isSet && !f.isFor {
			return driver.Errorf(driver.ErrUnsupported, "spec.%s: %s", f.name, f.hint)
		}
	}
	return nil
}

// Configure returns a file of memory with the configuration for the program in the guest. It may have Secrets.
func Configure(spec driver.ServerSpec, imageConfig image.RunConfig, network control.NetworkConfig, nonce []byte) (*os.File, error) {
	hostname, _, _ := strings.Cut(spec.Name, ".")
	c := config.Config{
		Hostname: hostname, Args: argumentsOf(spec, imageConfig), Env: slices.Clone(imageConfig.Env), User: imageConfig.User,
		WorkingDir: imageConfig.WorkingDir, StopSignal: imageConfig.StopSignal, GraceSeconds: graceOf(spec.GracePeriod),
		Network: guestNetwork(network), Disks: config.Disks{Root: config.RootSerial, Data: config.DataSerial}, Nonce: nonce,
	}
	for _, e := range spec.Env {
		c.Env = append(c.Env, e.Name+"="+e.Value.Reveal())
	}
	if spec.WorkingDir != "" {
		c.WorkingDir = spec.WorkingDir
	}
	text, err := config.Encode(c)
	if err != nil {
		return nil, driver.Errorf(driver.ErrInvalid, "spec.image cannot be run: %w", err)
	}
	return sealedFile(text)
}

// guestNetwork returns the configuration of the guest's interface at its edge.
func guestNetwork(edge control.NetworkConfig) config.Network {
	return config.Network{
		Address: edge.Address, Gateway: edge.Gateway(), MTU: edge.MTU, Resolvers: []netip.Addr{edge.Gateway()}, Search: []string{edge.Domain},
	}
}

// argumentsOf returns what is run, by the rules of a pod: a command of the spec also replaces the image's arguments.
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

// graceOf returns how long the guest waits for the command to end, in seconds. It is a little less than what the host
// waits for the guest, so that the guest can still report a command that it has killed.
func graceOf(period time.Duration) int64 {
	const reportWithin = 2 * time.Second
	return max(1, min(int64((period-reportWithin)/time.Second), config.MaxGraceSeconds))
}

// sealedFile returns a file of memory that cannot be changed any more.
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
