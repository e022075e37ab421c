// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package description has the configuration file of drover-machine, which describes a machine.
// Programs that start a drover-machine use this package to write the file.
//
// Start with Machine. Read reads and validates a description; Config converts it for package
// launch.
package description

import (
	"cmp"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Version is the version of descriptions that this package supports.
const Version = 1

// NodeAddresses is the environment variable with the IP addresses of the node that a pod runs on, separated by commas.
// The guest never connects to them. A description cannot have them, since it is written before the pod has a node.
const NodeAddresses = "DROVER_NODE_ADDRESSES"

// MaxFile bounds the size of a description and of a file for cloud-init: as much as a Secret
// holds.
const MaxFile = 1 << 20

// DefaultImageMaxBytes is the default of Machine.ImageMaxBytes.
const DefaultImageMaxBytes = 32 << 30

// Machine describes a machine. URLs of images in it may have secrets. User-data and keys are in
// separate files.
type Machine struct {
	format.Header

	Version int `json:"version"`
	// UUID identifies the machine. Its guest sees the UUID too.
	UUID string `json:"uuid"`
	// MAC is the address of the guest's network interface; empty means one that follows from the UUID.
	MAC string `json:"mac,omitempty"`
	// Name is the host name that cloud-init gives the guest.
	Name        string `json:"name"`
	CPUs        int64  `json:"cpus"`
	MemoryBytes int64  `json:"memoryBytes"`
	// Accelerator is auto, kvm or tcg; empty means auto.
	Accelerator string    `json:"accelerator,omitempty"`
	RootDisk    *RootDisk `json:"rootDisk,omitempty"`
	Volumes     []Volume  `json:"volumes,omitempty"`
	Kernel      *Kernel   `json:"kernel,omitempty"`
	Forwards    []Forward `json:"forwards,omitempty"`
	// CloudInit is a folder with the files user-data, network-data and ssh-keys. Each of them,
	// or the whole folder, may be missing.
	CloudInit string `json:"cloudInit,omitempty"`
	// GracePeriodSeconds is the time from SIGTERM to SIGKILL; 0 means 30.
	GracePeriodSeconds int64 `json:"gracePeriodSeconds,omitempty"`
	// ImageMaxBytes is how many bytes a downloaded image may have; 0 means
	// DefaultImageMaxBytes.
	ImageMaxBytes int64    `json:"imageMaxBytes,omitempty"`
	Control       *Control `json:"control,omitempty"`
}

// Disk describes a disk that is made once.
type Disk struct {
	// Folder has the disk, for example the folder of a mounted volume. Each disk needs a separate folder.
	Folder string `json:"folder"`
	// MustExist is set for a disk that an earlier run made. If the disk is missing, the run fails.
	MustExist bool `json:"mustExist,omitempty"`
	// Image is the image that is copied to the disk: a raw or qcow2 file, a folder with only that
	// file, or an http:// or https:// URL. It is empty for a blank disk.
	Image string `json:"image,omitempty"`
	// Checksum is the checksum of the image, "sha256:" and 64 digits. It is required for a URL.
	Checksum string `json:"checksum,omitempty"`
	// SizeBytes is the size of the disk; 0 means the image's size. A larger image is rejected.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// MaxBytes bounds the image of a disk without SizeBytes, for example to the space on its volume;
	// 0 means no limit.
	MaxBytes int64 `json:"maxBytes,omitempty"`
}

// RootDisk describes the first disk.
type RootDisk struct {
	Disk `json:",inline"`

	// Ephemeral makes a new disk at each start: a copy of the image if NeedsCopy, and otherwise
	// an overlay on top of the image.
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// Volume describes an additional disk.
type Volume struct {
	// Name is the serial number of the disk: a Linux guest finds it as
	// /dev/disk/by-id/virtio-NAME.
	Name string `json:"name"`
	Disk `json:",inline"`

	// ReadOnly makes the disk read-only for the guest. A read-only disk does not grow.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// Kernel is booted instead of the kernel on the disk.
type Kernel struct {
	File    string `json:"file"`
	Initrd  string `json:"initrd,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`
}

// Forward forwards a port of this host or container to a port of the guest.
type Forward struct {
	// Protocol is tcp or udp; empty means tcp.
	Protocol string `json:"protocol,omitempty"`
	// HostPort is the port of the host or container; 0 means the same number as Port.
	HostPort int32 `json:"hostPort,omitempty"`
	Port     int32 `json:"port"`
}

// Control is the listener of the control port: see package control.
type Control struct {
	Port int32 `json:"port"`
	// Folder has tls.crt and tls.key of the listener, and ca.crt of its clients.
	Folder string `json:"folder"`
}

// Read reads a description. A program that writes one names in mustUnderstand what a machine may not run without. In a
// description without that field, which people write, all unknown fields are errors.
func Read(path string) (Machine, error) {
	var m Machine
	content, err := ReadLimited(path)
	if err != nil {
		return m, fmt.Errorf("reading the description of the machine: %w", err)
	}
	if content, err = yaml.YAMLToJSONStrict(content); err == nil {
		m, err = format.DecodeEdited[Machine](content)
	}
	if err != nil {
		return m, fmt.Errorf("parsing the description %s: %w", path, err)
	}
	m.setDefaults()
	if err := m.check(); err != nil {
		return m, fmt.Errorf("the description %s: %w", path, err)
	}
	return m, nil
}

// ReadLimited reads a file of at most MaxFile bytes.
func ReadLimited(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // a path of whoever runs the program
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(content) > MaxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, MaxFile)
	}
	return content, err
}

func (m *Machine) setDefaults() {
	m.MAC = cmp.Or(m.MAC, launch.DeriveMAC(m.UUID))
	m.Accelerator = cmp.Or(m.Accelerator, machine.AccelAuto)
	m.GracePeriodSeconds = cmp.Or(m.GracePeriodSeconds, 30)
	m.ImageMaxBytes = cmp.Or(m.ImageMaxBytes, DefaultImageMaxBytes)
	for i := range m.Forwards {
		m.Forwards[i].Protocol = cmp.Or(m.Forwards[i].Protocol, "tcp")
		m.Forwards[i].HostPort = cmp.Or(m.Forwards[i].HostPort, m.Forwards[i].Port)
	}
}

// Config returns the configuration for package launch, without the files.
func (m *Machine) Config(accelerator, machineType string) launch.MachineConfig {
	return launch.MachineConfig{
		UUID: m.UUID, MAC: m.MAC, ID: m.Name,
		Type: machineType, Accel: accelerator, CPUs: m.CPUs, MemoryBytes: m.MemoryBytes,
	}
}
