// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package launch starts QEMU for the description of a machine. The program that uses it may
// do much on the host, and QEMU next to nothing.
//
// Start with Start. It takes a description (config.go, which makes the command line;
// check.go, which refuses invalid ones), the open files that the description names (files.go),
// and the users that machines run as (users.go). Package confine takes rights away from
// QEMU; confinement.go describes the result and its weaknesses. Package launch knows neither
// Kubernetes nor the content of the host's disks.
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
	// Policy is sufficient for every machine on that QEMU, except for rights that this one needs
	// and that Start adds.
	Policy confine.Policy
	Users  *Users
	// Dir is the working directory. QEMU need not be able to open it.
	Dir string
	// Temp is a folder for copies of files that QEMU's user could not read.
	Temp string
	// Output gets the output of QEMU. The file must be open for appending.
	Output *os.File
}

// Started is a QEMU that was started.
type Started struct {
	*exec.Cmd
	// Confinement says how it is confined.
	Confinement Confinement
}

// Start starts the QEMU of a machine in a new session. QEMU does not inherit this program's
// environment, and of its files only the given ones, which the caller closes.
func Start(ctx context.Context, c MachineConfig, o Invocation, in Endpoints, files *Files) (*Started, error) {
	arguments, err := c.Arguments(files)
	if err != nil {
		return nil, fmt.Errorf("the machine cannot be started as it is described: %w", err)
	}
	given := slices.Clone(files.files)
	for _, fd := range c.reopenedFDs() {
		readable, err := o.makeReadable(files.fileOf(fd))
		if err != nil {
			return nil, fmt.Errorf("copying a file that QEMU is to read: %w", err)
		}
		if readable != files.fileOf(fd) {
			defer func() { _ = readable.Close() }()
		}
		given[fd-firstFD] = readable
	}
	started := &Started{Cmd: o.command(ctx, arguments, slices.Concat(in.files(), given))}
	err = o.Users.StartAs(func(user *confine.User) error {
		started.Confinement = o.confinementOf(user)
		return explainStart(confine.Start(started.Cmd, o.policyOf(c, user, given)), user)
	})
	return started, err
}

func (o Invocation) command(ctx context.Context, arguments []string, files []*os.File) *exec.Cmd {
	cmd := confine.Command(context.WithoutCancel(ctx), o.Program, arguments...)
	cmd.Stdout, cmd.Stderr = o.Output, o.Output
	cmd.ExtraFiles = files
	return cmd
}

// StartProbe starts a program that tries a KVM device, as confined as the QEMU of a machine
// that uses the device.
func StartProbe(cmd *exec.Cmd, policy confine.Policy, users *Users, device string) error {
	return users.StartAs(func(user *confine.User) error {
		return explainStart(confine.Start(cmd, withKVM(policy, user, device)), user)
	})
}

// withKVM lets the user use a KVM device, and gives it the device's group.
func withKVM(policy confine.Policy, user *confine.User, device string) confine.Policy {
	policy.Devices, policy.User = append(slices.Clone(policy.Devices), device), user
	if user != nil {
		user.Groups = deviceGroups(device)
	}
	return policy
}

// explainStart says what an error of a start as another user means.
func explainStart(err error, user *confine.User) error {
	switch {
	case user == nil || err == nil || errors.Is(err, confine.ErrNotRestricted):
		return err
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: Drover cannot start it as user ID %d: that takes root with CAP_SETUID, CAP_SETGID and CAP_SETPCAP, and an ID that exists in this user namespace: %w", ErrNoUser, user.ID, err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("user ID %d may not execute the program: every user must be able to: %w", user.ID, err)
	}
	return err
}

// policyOf returns the policy of every machine with the rights that this one needs in addition.
func (o Invocation) policyOf(c MachineConfig, user *confine.User, files []*os.File) confine.Policy {
	policy := o.Policy
	policy.Dir, policy.User = o.Dir, user
	if c.Accel == AccelKVM {
		policy = withKVM(policy, user, KVMDevice)
	}
	policy.Reopen = nil
	for _, fd := range c.reopenedFDs() {
		policy.Reopen = append(policy.Reopen, files[fd-firstFD])
	}
	return policy
}

// deviceGroups returns the group of a device, if the group may use it and is not root's.
func deviceGroups(path string) []uint32 {
	const groupAccess = 0o060
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil || info.Gid == 0 || info.Mode&groupAccess != groupAccess {
		return nil
	}
	return []uint32{info.Gid}
}

// makeReadable returns a file that machines' users may open again for reading: the given
// one, or a copy whose path has been removed.
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
	var again *os.File
	if err == nil { // not for writing
		again, err = os.Open(reopenName(int(out.Fd())))
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return again, nil
}
