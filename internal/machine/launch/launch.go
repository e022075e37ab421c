// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package launch starts a confined QEMU for the configuration of a machine.
//
// Start with Start. Its parameters are a configuration (config.go makes the command line of
// it, check.go validates it), the open files that the configuration names (files.go), and
// the users that machines run as (users.go). Package confine takes rights away from QEMU;
// confinement.go describes the result and its gaps. Package launch knows neither Kubernetes
// nor the content of disks.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
)

// KVMDevice is the device that gives guests the processor's virtualisation.
const KVMDevice = "/dev/kvm"

// Invocation says how to start a machine.
type Invocation struct {
	// Program is the QEMU to start.
	Program string
	// Policy is the common policy of all machines on that QEMU. Start adds the rights that only
	// this machine needs.
	Policy confine.Policy
	Users  *Users
	// Dir is the working directory. QEMU need not be able to open it.
	Dir string
	// Temp is a folder for copies of files that QEMU's user could not read.
	Temp string
	// Output receives the output of QEMU. The file must be open for appending.
	Output *os.File
}

// Started is a QEMU that was started.
type Started struct {
	*exec.Cmd
	// Confinement says how QEMU is confined.
	Confinement Confinement
}

// Start starts the QEMU of a machine in a new session. QEMU inherits only in and files, and not
// the environment of this program. The caller closes the files.
func Start(ctx context.Context, c MachineConfig, o Invocation, in Endpoints, files *Files) (*Started, error) {
	arguments, err := c.Arguments(files)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the machine is invalid: %w", err)
	}
	inherited := slices.Clone(files.files)
	for _, fd := range c.reopenedFDs() {
		readable, err := o.makeReadable(files.fileOf(fd))
		if err != nil {
			return nil, fmt.Errorf("copying a file that QEMU cannot read: %w", err)
		}
		if readable != files.fileOf(fd) {
			defer func() { _ = readable.Close() }()
		}
		inherited[fd-firstFD] = readable
	}
	started := &Started{Cmd: o.command(ctx, arguments, slices.Concat(in.files(), inherited))}
	err = o.Users.StartAs(func(user *confine.User) error {
		started.Confinement = o.confinementOf(user)
		return explainStartError(confine.Start(started.Cmd, o.policyFor(c, user, inherited)), user)
	})
	return started, err
}

func (o Invocation) command(ctx context.Context, arguments []string, files []*os.File) *exec.Cmd {
	cmd := confine.Command(context.WithoutCancel(ctx), o.Program, arguments...)
	cmd.Stdout, cmd.Stderr = o.Output, o.Output
	cmd.ExtraFiles = files
	return cmd
}

// StartProbe starts a QEMU that probes a KVM device. It is confined like the QEMU of a machine
// that uses the device.
func StartProbe(cmd *exec.Cmd, policy confine.Policy, users *Users, device string) error {
	return users.StartAs(func(user *confine.User) error {
		return explainStartError(confine.Start(cmd, withKVM(policy, user, device)), user)
	})
}

// withKVM adds the right to use a KVM device, and the device's group to the user.
func withKVM(policy confine.Policy, user *confine.User, device string) confine.Policy {
	policy.Devices, policy.User = append(slices.Clone(policy.Devices), device), user
	if user != nil {
		user.Groups = deviceGroups(device)
	}
	return policy
}

// explainStartError adds to the error of a start as another user what must be changed.
func explainStartError(err error, user *confine.User) error {
	switch {
	case user == nil || err == nil || errors.Is(err, confine.ErrNotRestricted):
		return err
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: Drover cannot start QEMU as user ID %d, which needs root with CAP_SETUID, CAP_SETGID and CAP_SETPCAP, and an ID that exists in this user namespace: %w", ErrNoUser, user.ID, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("user ID %d may not execute QEMU, which every user must be able to execute: %w", user.ID, err)
	}
	return err
}

// oomScore makes the kernel end a machine before its supervisor, and that before Drover.
const oomScore = 300

// policyFor returns the common policy with the rights that this machine needs in addition.
func (o Invocation) policyFor(c MachineConfig, user *confine.User, files []*os.File) confine.Policy {
	policy := o.Policy
	policy.Dir, policy.User, policy.OOMScore = o.Dir, user, oomScore
	if c.Accel == AccelKVM {
		policy = withKVM(policy, user, KVMDevice)
	}
	policy.Reopen = nil
	for _, fd := range c.reopenedFDs() {
		policy.Reopen = append(policy.Reopen, files[fd-firstFD])
	}
	return policy
}

// deviceGroups returns the group of a device, if the group may read and write it and is not root.
func deviceGroups(path string) []uint32 {
	const groupAccess = 0o060
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil || info.Gid == 0 || info.Mode&groupAccess != groupAccess {
		return nil
	}
	return []uint32{info.Gid}
}

// makeReadable returns a file that machines' users may open again for reading: file itself, or
// an unlinked copy.
func (o Invocation) makeReadable(file *os.File) (*os.File, error) {
	info, err := file.Stat()
	if err != nil || !o.Users.AreSeparate() || info.Mode().Perm()&0o004 != 0 {
		return file, err
	}
	path := filepath.Join(o.Temp, "copy")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // in the caller's folder
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(out, io.NewSectionReader(file, 0, info.Size()))
	err = errors.Join(err, out.Chmod(0o444), os.Remove(path))
	var readOnly *os.File
	if err == nil {
		readOnly, err = os.Open(reopenName(int(out.Fd())))
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return readOnly, nil
}
