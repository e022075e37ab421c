// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package description

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
)

const (
	// maxGrace is the maximum grace period in seconds, a week.
	maxGrace = 7 * 24 * 3600
	// maxVolumes is how many volumes a machine has PCI slots for.
	maxVolumes = 16
)

var (
	accelerators    = []string{machine.AccelAuto, machine.AccelKVM, machine.AccelTCG}
	namePattern     = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	checksumPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// volumePattern allows 20 characters, the maximum length of a virtio-blk serial number.
	volumePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`)
)

// IsFetched reports whether the image is downloaded from a URL.
func (d *Disk) IsFetched() bool { return strings.Contains(d.Image, "://") }

// NeedsCopy reports whether an ephemeral disk must be a copy of the image, because the image is
// downloaded or has a checksum to verify. Other ephemeral disks are overlays on top of the image.
func (d *Disk) NeedsCopy() bool { return d.IsFetched() || d.Checksum != "" }

// check validates a description before anything is made.
func (m *Machine) check() error {
	switch {
	case m.Version != Version:
		return fmt.Errorf("version is %d: this program supports version %d", m.Version, Version)
	case !namePattern.MatchString(m.Name):
		return fmt.Errorf("name is %.80q: it must be a lowercase host name of at most 63 characters", m.Name)
	case !slices.Contains(accelerators, m.Accelerator):
		return fmt.Errorf("accelerator is %.80q: it must be one of %q", m.Accelerator, accelerators)
	case m.GracePeriodSeconds < 1 || m.GracePeriodSeconds > maxGrace:
		return fmt.Errorf("gracePeriodSeconds is %d: it must be from 1 to %d", m.GracePeriodSeconds, maxGrace)
	case m.ImageMaxBytes < 0:
		return fmt.Errorf("imageMaxBytes is %d: it must not be negative", m.ImageMaxBytes)
	case m.RootDisk == nil && m.Kernel == nil:
		return errors.New("rootDisk and kernel are missing: the machine needs one of them to boot")
	}
	config := m.Config(machine.AccelTCG, "q35")
	_, err := config.Arguments(&launch.Files{})
	return cmp.Or(err, m.checkDisks(), m.checkForwards(), m.checkControl(), m.checkPaths())
}

// checkDisks validates the disks. Their folders must differ.
func (m *Machine) checkDisks() error {
	folders := map[string]string{}
	checkDisk := func(field string, d *Disk) error {
		folder := filepath.Clean(d.Folder)
		if other, taken := folders[folder]; taken {
			return fmt.Errorf("%s.folder is %q: %s has the same folder, and each disk needs a separate one", field, d.Folder, other)
		}
		folders[folder] = field
		return d.check(field)
	}
	if m.RootDisk != nil {
		if err := checkDisk("rootDisk", &m.RootDisk.Disk); err != nil {
			return err
		}
	}
	if len(m.Volumes) > maxVolumes {
		return fmt.Errorf("volumes has %d entries, and at most %d are possible", len(m.Volumes), maxVolumes)
	}
	names := map[string]bool{}
	for i := range m.Volumes {
		v, field := &m.Volumes[i], fmt.Sprintf("volumes[%d]", i)
		if !volumePattern.MatchString(v.Name) || names[v.Name] {
			return fmt.Errorf("%s.name is %.80q: it must be unique, of at most 20 lowercase letters, digits and dashes", field, v.Name)
		}
		names[v.Name] = true
		if err := checkDisk(field, &v.Disk); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) check(field string) error {
	switch {
	case !filepath.IsAbs(d.Folder):
		return fmt.Errorf("%s.folder is %q: it must be an absolute path", field, d.Folder)
	case d.SizeBytes < 0:
		return fmt.Errorf("%s.sizeBytes is %d: it must not be negative", field, d.SizeBytes)
	case d.MaxBytes < 0:
		return fmt.Errorf("%s.maxBytes is %d: it must not be negative", field, d.MaxBytes)
	case d.Image == "" && d.SizeBytes == 0 && !d.MustExist:
		return fmt.Errorf("%s.sizeBytes is missing: a disk without an image needs it", field)
	case d.Image == "" && d.Checksum != "":
		return fmt.Errorf("%s.checksum is set: a disk without an image must not have one", field)
	case d.Checksum != "" && !checksumPattern.MatchString(d.Checksum):
		return fmt.Errorf(`%s.checksum is %.80q: it must be "sha256:" and 64 lowercase hexadecimal digits`, field, d.Checksum)
	case d.IsFetched():
		return d.checkURL(field)
	case d.Image != "" && !filepath.IsAbs(d.Image):
		return fmt.Errorf("%s.image is %q: it must be an absolute path, an http:// or https:// URL, or empty", field, d.Image)
	}
	return nil
}

// checkURL validates the URL of an image. Its errors do not quote the URL, which may have secrets.
func (d *Disk) checkURL(field string) error {
	parsed, err := url.Parse(d.Image)
	switch {
	case err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https"):
		return fmt.Errorf("%s.image is a URL that is not supported: it must be http:// or https://, with a host", field)
	case d.Checksum == "":
		return fmt.Errorf(`%s.checksum is missing: an image that is downloaded from a URL needs "sha256:" and 64 lowercase hexadecimal digits`, field)
	}
	return nil
}

// protocols are the protocols that a forward may have.
var protocols = []string{"tcp", "udp"}

func (m *Machine) checkForwards() error {
	for i, f := range m.Forwards {
		if !slices.Contains(protocols, f.Protocol) {
			return fmt.Errorf("forwards[%d].protocol is %.80q: it must be one of %q", i, f.Protocol, protocols)
		}
		for name, port := range map[string]int32{"hostPort": f.HostPort, "port": f.Port} {
			if port < 1 || port > math.MaxUint16 {
				return fmt.Errorf("forwards[%d].%s is %d: it must be from 1 to %d", i, name, port, math.MaxUint16)
			}
		}
	}
	return nil
}

// checkControl validates the control port, which must differ from the host ports of forwards.
func (m *Machine) checkControl() error {
	if m.Control == nil {
		return nil
	}
	port := m.Control.Port
	isForwarded := slices.ContainsFunc(m.Forwards, func(f Forward) bool { return f.Protocol == "tcp" && f.HostPort == port })
	switch {
	case port < 1 || port > math.MaxUint16:
		return fmt.Errorf("control.port is %d: it must be from 1 to %d", port, math.MaxUint16)
	case isForwarded:
		return fmt.Errorf("control.port is %d: a forward has the same host port", port)
	}
	return nil
}

// checkPaths rejects relative paths.
func (m *Machine) checkPaths() error {
	paths, required := map[string]string{"cloudInit": m.CloudInit}, map[string]string{}
	if m.Kernel != nil {
		paths["kernel.initrd"], required["kernel.file"] = m.Kernel.Initrd, m.Kernel.File
	}
	if m.Control != nil {
		required["control.folder"] = m.Control.Folder
	}
	for field, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%s is %q: it must be an absolute path, or empty", field, path)
		}
	}
	for field, path := range required {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s is %q: it must be an absolute path", field, path)
		}
	}
	return nil
}
