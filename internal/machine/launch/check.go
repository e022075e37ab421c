// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

const (
	maxVolumes = 100
	maxCPUs    = 1 << 16
	minMemory  = 1 << 20 // bytes
	maxMemory  = 1 << 50
	maxCmdline = 64 << 10
)

var (
	uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// namePattern excludes commas, which separate QEMU's options.
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	accelerators = []string{AccelKVM, AccelTCG}
	// reservedSerials are of Drover's disks.
	reservedSerials = []string{SeedSerial, guestconfig.RootSerial, guestconfig.DataSerial, guestconfig.ModulesSerial, guestconfig.FilesSerial, guestconfig.ResultSerial}
	formats         = []string{formatQcow2, formatRaw}
)

// check fails for a configuration that QEMU would misunderstand, or that does not name each
// descriptor of files exactly once.
func (c MachineConfig) check(files *Files) error {
	if err := c.checkMachine(); err != nil {
		return err
	}
	if len(c.Volumes) > maxVolumes {
		return fmt.Errorf("volumes has %d entries, and at most %d are possible", len(c.Volumes), maxVolumes)
	}
	names := map[string]bool{}
	for i, v := range c.Volumes {
		if !namePattern.MatchString(v.Name) || slices.Contains(reservedSerials, v.Name) || names[v.Name] {
			return fmt.Errorf("volumes[%d].name is %q: it must be unique, of letters, digits, dots, dashes and underscores", i, v.Name)
		}
		names[v.Name] = true
	}
	return cmp.Or(c.checkGuest(), c.checkFormats(), c.checkDescriptors(files))
}

// CheckUUID rejects text other than a UUID.
func CheckUUID(text string) error {
	if !uuidPattern.MatchString(text) {
		return fmt.Errorf("uuid is %.80q: it must be a lowercase UUID", text)
	}
	return nil
}

func (c MachineConfig) checkMachine() error {
	switch {
	case CheckUUID(c.UUID) != nil:
		return CheckUUID(c.UUID)
	case CheckMAC(c.MAC) != nil:
		return CheckMAC(c.MAC)
	case !namePattern.MatchString(c.ID):
		return fmt.Errorf("id is %.80q: it must be of letters, digits, dots, dashes and underscores", c.ID)
	case !namePattern.MatchString(c.Type):
		return fmt.Errorf("type is %.80q: it must be a machine type of QEMU", c.Type)
	case !slices.Contains(accelerators, c.Accel):
		return fmt.Errorf("accelerator is %.80q: it must be one of %q", c.Accel, accelerators)
	case c.CPUs < 1 || c.CPUs > maxCPUs:
		return fmt.Errorf("cpus is %d: it must be from 1 to %d", c.CPUs, maxCPUs)
	case c.MemoryBytes < minMemory || c.MemoryBytes > maxMemory:
		return fmt.Errorf("memoryBytes is %d: it must be from %d to %d", c.MemoryBytes, minMemory, maxMemory)
	case c.Kernel != nil && (len(c.Kernel.Cmdline) > maxCmdline || !utf8.ValidString(c.Kernel.Cmdline) || strings.ContainsRune(c.Kernel.Cmdline, 0)):
		return fmt.Errorf("kernel.cmdline has %d bytes: it must be text of at most %d", len(c.Kernel.Cmdline), maxCmdline)
	}
	return nil
}

func (c MachineConfig) checkGuest() error {
	if c.Guest != nil && (c.Kernel == nil || c.AgentFD == 0 || c.SeedFD != 0) {
		return errors.New("guest is set, so kernel and agentFD must be set, and seedFD must not")
	}
	return nil
}

// drives returns the root disk and the volumes.
func (c MachineConfig) drives() []Drive {
	var all []Drive
	if c.Root != nil {
		all = append(all, *c.Root)
	}
	for _, v := range c.Volumes {
		all = append(all, v.Drive)
	}
	return all
}

func (c MachineConfig) checkFormats() error {
	for _, d := range c.drives() {
		if d.Format != "" && (d.Format != formatRaw || d.Backing != nil) {
			return fmt.Errorf("the format of a disk is %.80q: it must be %q, without a backing image, or empty for qcow2", d.Format, formatRaw)
		}
		if d.Backing != nil && !slices.Contains(formats, d.Backing.Format) {
			return fmt.Errorf("the format of a backing image is %.80q: it must be one of %q", d.Backing.Format, formats)
		}
	}
	return nil
}

// setFDs returns the descriptors that QEMU uses through fdsets (-add-fd): of disks, of the result and of the output.
func (c MachineConfig) setFDs() []int {
	var all []int
	for _, d := range c.drives() {
		all = append(all, d.FD)
		if d.Backing != nil {
			all = append(all, d.Backing.FD)
		}
	}
	if c.SeedFD != 0 {
		all = append(all, c.SeedFD)
	}
	if c.Guest != nil {
		all = append(all, c.Guest.ImageFD, c.Guest.ResultFD, c.Guest.OutputFDs[0], c.Guest.OutputFDs[1])
		if c.Guest.ModulesFD != 0 {
			all = append(all, c.Guest.ModulesFD)
		}
		if c.Guest.FilesFD != 0 {
			all = append(all, c.Guest.FilesFD)
		}
	}
	return all
}

// reopenedFDs returns the descriptors whose files QEMU opens again through /proc/self/fd.
func (c MachineConfig) reopenedFDs() []int {
	var all []int
	if c.Kernel != nil {
		all = append(all, c.Kernel.FD)
		if c.Kernel.InitrdFD != 0 {
			all = append(all, c.Kernel.InitrdFD)
		}
	}
	if c.Guest != nil {
		all = append(all, c.Guest.ConfigFD)
	}
	return all
}

// socketFDs returns the descriptors that QEMU uses directly.
func (c MachineConfig) socketFDs() []int {
	if c.AgentFD == 0 {
		return nil
	}
	return []int{c.AgentFD}
}

func (c MachineConfig) checkDescriptors(files *Files) error {
	used := slices.Concat(c.setFDs(), c.reopenedFDs(), c.socketFDs())
	for i, fd := range used {
		if fd < firstFD || fd >= firstFD+len(files.files) || slices.Contains(used[:i], fd) {
			return fmt.Errorf("descriptor %d is unknown or used twice: each descriptor from %d to %d must be used once", fd, firstFD, firstFD+len(files.files)-1)
		}
	}
	if len(used) != len(files.files) {
		return fmt.Errorf("the configuration names %d descriptors for %d files", len(used), len(files.files))
	}
	return nil
}
