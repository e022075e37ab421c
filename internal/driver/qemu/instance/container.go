// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
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

// prepareGuest gathers what a run of a container image needs besides its disk: the kernel, the image, and the
// configuration for Drover's program in the guest.
func (s *start) prepareGuest() (err error) {
	if s.machine.Kernel, s.guest.Kernel, err = s.host.openGuestKernel(s.machine.Accel, s.files); err != nil {
		return err
	}
	root, err := s.host.Disks.OpenRoot(s.inst.Root.Image)
	if err != nil {
		return err
	}
	s.machine.Guest = &launch.Guest{ImageFD: s.files.Add(root.File)}
	s.guest.Nonce = make([]byte, config.NonceBytes)
	_, _ = rand.Read(s.guest.Nonce) // never fails
	configured, err := configureGuest(s.spec, root.Config, guestNetwork(s.inst.networkConfig()), s.guest.Nonce)
	if err != nil {
		return err
	}
	s.machine.Guest.ConfigFD = s.files.Add(configured)
	return nil
}

// resultFile returns the path of the guest's report about a run. It goes with the record of the run's end.
func resultFile(exitFile string) string { return strings.TrimSuffix(exitFile, ".json") + ".result" }

// openResult opens the file of the result for QEMU, a disk of the guest. Its room on the host is taken beforehand: the
// exit code must not be lost because the disk is full when the guest ends.
func (s *start) openResult() error {
	if s.machine.Guest == nil {
		return nil
	}
	path := resultFile(s.inst.ExitFile())
	point := crashpoint.Begin("create", path)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR|unix.O_NOFOLLOW, 0o600) //nolint:gosec // in the driver's folder
	point.End()
	if err != nil {
		return s.host.StateDir.Explain(err)
	}
	if _, err := f.Write(make([]byte, config.ResultBytes)); err != nil {
		return s.host.StateDir.Explain(errors.Join(err, f.Close()))
	}
	s.machine.Guest.ResultFD = s.files.Add(f)
	return nil
}

// configureGuest returns a file of memory with the configuration for the program in the guest. It may have Secrets.
func configureGuest(spec driver.ServerSpec, imageConfig image.Config, network config.Network, nonce []byte) (*os.File, error) {
	hostname, _, _ := strings.Cut(spec.Name, ".")
	c := config.Config{
		Hostname: hostname, Args: argumentsOf(spec, imageConfig), Env: slices.Clone(imageConfig.Env), User: imageConfig.User,
		WorkingDir: imageConfig.WorkingDir, StopSignal: imageConfig.StopSignal, GraceSeconds: graceOf(spec.GracePeriod),
		Network: network, Disks: config.Disks{Root: config.RootSerial, Data: config.DataSerial}, Nonce: nonce,
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
func argumentsOf(spec driver.ServerSpec, config image.Config) []string {
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

// reasonError is the reason of an exit with a code, as docker has it.
const reasonError = "Error"

// addClaim adds to the exit of a guest that has shut down how its command has ended, which the guest has reported in a
// file.
func addClaim(file string, exit *driver.Exit) error {
	if exit.Reason != machine.EndCompleted {
		return nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW, 0) //nolint:gosec // in the driver's folder
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	claim, err := config.ReadClaim(f)
	switch {
	case err != nil:
		return err
	case claim.Ended:
		exit.Code = claim.Code
	case !claim.Handover:
		exit.Code = config.CodeFailed
	}
	if exit.Code != 0 {
		exit.Reason = reasonError
	}
	exit.Message = claim.Message
	return nil
}
