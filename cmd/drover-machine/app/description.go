// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
)

// descriptionVersion is the version of the descriptions that this program reads.
const descriptionVersion = 1

// maxFile bounds what is read of a description, and of a file for cloud-init: as much as a
// Secret holds.
const maxFile = 1 << 20

// description describes a machine. It has no secrets: those are in files that it names.
type description struct {
	Version int `json:"version"`
	// UUID identifies the machine, for its guest too.
	UUID string `json:"uuid"`
	// Name is the host name that cloud-init gives the guest.
	Name        string `json:"name"`
	CPUs        int64  `json:"cpus"`
	MemoryBytes int64  `json:"memoryBytes"`
	// Accelerator is auto, kvm or tcg; empty means auto.
	Accelerator string    `json:"accelerator,omitempty"`
	RootDisk    *rootDisk `json:"rootDisk,omitempty"`
	Kernel      *kernel   `json:"kernel,omitempty"`
	Forwards    []forward `json:"forwards,omitempty"`
	// CloudInit is a folder with the files user-data, network-data and ssh-keys, of which any
	// may be missing; empty for none.
	CloudInit string `json:"cloudInit,omitempty"`
	// GracePeriodSeconds is the time from SIGTERM to SIGKILL; 0 means 30.
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty"`
}

// rootDisk describes the first disk.
type rootDisk struct {
	// Folder keeps the disk, which is made once.
	Folder string `json:"folder"`
	// Image is the file, raw or qcow2, that the disk is a copy of, or a folder with that file
	// alone; empty for a blank disk.
	Image string `json:"image,omitempty"`
	// SizeBytes is what the disk is grown to; 0 means the image's size.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// Ephemeral makes a new disk at each start, on top of the image instead of a copy of it.
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// kernel is booted in place of the one on the disk.
type kernel struct {
	File    string `json:"file"`
	Initrd  string `json:"initrd,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`
}

// forward forwards a port of this host, or container, to one of the guest.
type forward struct {
	// Protocol is tcp or udp; empty means tcp.
	Protocol string `json:"protocol,omitempty"`
	// HostPort is the port outside; 0 means the guest's number.
	HostPort int32 `json:"hostPort,omitempty"`
	Port     int32 `json:"port"`
}

// readDescription reads a description. It refuses fields that it does not know: a machine must
// not run without something that its description asks for.
func readDescription(path string) (description, error) {
	var d description
	content, err := readLimited(path)
	if err != nil {
		return d, fmt.Errorf("reading the description of the machine: %w", err)
	}
	if err := yaml.UnmarshalStrict(content, &d); err != nil {
		return d, fmt.Errorf("the description %s: %w", path, err)
	}
	d.setDefaults()
	if err := d.check(); err != nil {
		return d, fmt.Errorf("the description %s: %w", path, err)
	}
	return d, nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // who runs the program names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return content, err
}

func (d *description) setDefaults() {
	d.Accelerator = cmp.Or(d.Accelerator, machine.AccelAuto)
	d.GracePeriodSeconds = cmp.Or(d.GracePeriodSeconds, 30)
	for i := range d.Forwards {
		d.Forwards[i].Protocol = cmp.Or(d.Forwards[i].Protocol, "tcp")
		d.Forwards[i].HostPort = cmp.Or(d.Forwards[i].HostPort, d.Forwards[i].Port)
	}
}

// maxGrace is more than a person waits for.
const maxGrace = 7 * 24 * 3600

var (
	accelerators = []string{machine.AccelAuto, machine.AccelKVM, machine.AccelTCG}
	namePattern  = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
)

// check refuses a wrong description before anything is made.
func (d *description) check() error {
	switch {
	case d.Version != descriptionVersion:
		return fmt.Errorf("version is %d: this program knows %d", d.Version, descriptionVersion)
	case !namePattern.MatchString(d.Name):
		return fmt.Errorf("name is %.80q: it must be a host name in small letters of at most 63 characters", d.Name)
	case !slices.Contains(accelerators, d.Accelerator):
		return fmt.Errorf("accelerator is %.80q: it must be one of %q", d.Accelerator, accelerators)
	case d.GracePeriodSeconds < 1 || d.GracePeriodSeconds > maxGrace:
		return fmt.Errorf("gracePeriodSeconds is %d: it must be from 1 to %d", d.GracePeriodSeconds, maxGrace)
	case d.RootDisk == nil && d.Kernel == nil:
		return errors.New("rootDisk and kernel are missing: one of them must say what to boot")
	}
	_, err := d.config(machine.AccelTCG, "q35").Arguments(&launch.Files{})
	return cmp.Or(err, d.RootDisk.check(), d.checkPaths())
}

// config returns the machine without its files.
func (d *description) config(accelerator, machineType string) launch.Config {
	c := launch.Config{
		Version: launch.Version, UUID: d.UUID, ID: d.Name,
		Type: machineType, Accel: accelerator, CPUs: d.CPUs, MemoryBytes: d.MemoryBytes,
	}
	for _, f := range d.Forwards {
		c.Forwards = append(c.Forwards, launch.Forward{Protocol: f.Protocol, HostPort: f.HostPort, Port: f.Port})
	}
	return c
}

func (r *rootDisk) check() error {
	switch {
	case r == nil:
		return nil
	case r.SizeBytes < 0:
		return fmt.Errorf("rootDisk.sizeBytes is %d: it must not be negative", r.SizeBytes)
	case r.Image == "" && r.SizeBytes == 0:
		return errors.New("rootDisk.sizeBytes is missing: a disk without an image has no size of its own")
	}
	return nil
}

// checkPaths refuses paths that depend on the working directory.
func (d *description) checkPaths() error {
	paths := map[string]string{"cloudInit": d.CloudInit}
	required := map[string]string{}
	if d.RootDisk != nil {
		paths["rootDisk.image"], required["rootDisk.folder"] = d.RootDisk.Image, d.RootDisk.Folder
	}
	if d.Kernel != nil {
		paths["kernel.initrd"], required["kernel.file"] = d.Kernel.Initrd, d.Kernel.File
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
