// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record has the record of a server that the qemu driver stores, as a JSON file
// beside the server's disks.
//
// Start with Record.
package record

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/output"
)

// Phase is the phase of a server's last run; empty before the first run.
type Phase string

const (
	// PhaseStarting means that the server's QEMU is being started. If QEMU does not run in this
	// phase, the start was interrupted, and the guest never ran.
	PhaseStarting Phase = "starting"
	// PhaseOn means that the guest runs or has run. Package exits has the exit of a run that is over.
	PhaseOn Phase = "on"
)

// Record is the stored state of a server. Only the holder of the server's lock writes it.
type Record struct {
	format.Header

	ClusterID string    `json:"clusterID"`
	UID       types.UID `json:"uid"`
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Epoch     uint64    `json:"epoch"`
	Retained  bool      `json:"retained,omitempty"`

	Phase     Phase     `json:"phase,omitempty"`
	Run       string    `json:"run,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	Stop      *Stop     `json:"stop,omitempty"`
	// GraceSeconds is the grace period of the spec, for a shutdown of the host.
	GraceSeconds int64 `json:"graceSeconds"`
	// CPUGroup is the control group of the run, which may limit it to a fraction of a CPU; empty if none could be made.
	// CPUNote says why a run with a fraction in its spec lacks one.
	CPUGroup string `json:"cpuGroup,omitempty"`
	CPUNote  string `json:"cpuNote,omitempty"`

	// MachineType is QEMU's machine type. It never changes in the life of a server.
	MachineType string `json:"machineType"`
	// The guest sees UUID and MAC. They never change in the life of a server. fillIdentity returns them for the
	// record of an earlier version, which lacks them.
	UUID string `json:"uuid"`
	MAC  string `json:"mac"`
	// Accelerator of the last run.
	Accelerator string `json:"accelerator,omitempty"`
	// Forwards of the last run.
	Forwards []hostports.Forward `json:"forwards,omitempty"`
	// Egress is where the guest may connect to.
	Egress control.Egress `json:"egress,omitzero"`
	// NetworkRevision is the revision of Forwards and Egress, which the machine's supervisor has to apply.
	NetworkRevision control.Revision `json:"networkRevision,omitzero"`
	// Address is the machine's address, assigned before its first run, with the prefix length of the network.
	Address netip.Prefix `json:"address,omitzero"`
	// Guest is set if the last run booted a container image.
	Guest *Guest `json:"guest,omitempty"`

	Settings Settings   `json:"settings"`
	Root     disks.Disk `json:"root"`
	// Volumes are the volumes by name, including volumes that the spec no longer names.
	Volumes map[string]disks.Disk `json:"volumes,omitempty"`
}

// Guest has the values of a run of a container image.
type Guest struct {
	// Nonce is a secret with which the host authenticates to Drover's program in the guest.
	Nonce []byte `json:"nonce"`
	// Protocol is the version of the guest's interface (package config), 0 for a run of an earlier version of Drover.
	Protocol int `json:"protocol,omitempty"`
	// Kernel is the digest of the kernel.
	Kernel string `json:"kernel"`
	// ExposedPorts are the ports that the image declares, as it writes them.
	ExposedPorts []string `json:"exposedPorts,omitempty"`
	// HealthCheck is the check in the image, nil without one.
	HealthCheck *health.Check `json:"healthCheck,omitempty"`
	// Output is nil for a run that an earlier version of Drover has started: its output is in the serial log.
	Output *Output `json:"output,omitempty"`
}

// Output has the positions in the output files at which the output of this run begins and, if known, of the previous run.
type Output struct {
	Begin    output.Positions  `json:"begin"`
	Previous *output.Positions `json:"previous,omitempty"`
}

// NewRecord returns a record with a new ID and an identity for a new machine.
func NewRecord() Record {
	return Record{ID: NewID(), UUID: string(uuid.NewUUID()), MAC: launch.NewMAC()}
}

// fillIdentity gives the record of an earlier version the UUID and the MAC that its machine has: they followed from the UID.
func (r *Record) fillIdentity() {
	r.UUID = cmp.Or(r.UUID, string(r.UID))
	r.MAC = cmp.Or(r.MAC, launch.DeriveMAC(string(r.UID)))
}

// Read reads a record. It fails if the record lacks a field, or has an invalid one.
func Read(text []byte) (Record, error) {
	r, err := format.Decode[Record](text)
	if err != nil {
		return r, err
	}
	if r.ClusterID == "" || r.ID == "" || CheckUID(r.UID) != nil {
		return r, errors.New("clusterID, uid or id is missing")
	}
	r.fillIdentity()
	return r, cmp.Or(launch.CheckUUID(r.UUID), launch.CheckMAC(r.MAC))
}

// Settings are the parts of the spec that only a restart can change.
type Settings struct {
	CPUMilli    int64            `json:"cpuMilli"`
	MemoryBytes int64            `json:"memoryBytes"`
	Image       image.Ref        `json:"image,omitzero"`
	Kernel      driver.Kernel    `json:"kernel,omitzero"`
	Ports       []driver.Port    `json:"ports,omitempty"`
	Volumes     []VolumeSettings `json:"volumes,omitempty"`
	SSHKeys     []string         `json:"sshKeys,omitempty"`
	// UserData and NetworkData are hashes, by which a change of these secrets is detected.
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`

	Command    []string `json:"command,omitempty"`
	Args       []string `json:"args,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	User       string   `json:"user,omitempty"`
	Init       string   `json:"init,omitempty"`

	Stdin   bool            `json:"stdin,omitempty"`
	TTY     bool            `json:"tty,omitempty"`
	Sysctls []driver.Sysctl `json:"sysctls,omitempty"`
	// Env is a hash, since values may be from Secrets.
	Env string `json:"env,omitempty"`
	// MountPaths are the folders of spec.files, sorted.
	MountPaths []string `json:"mountPaths,omitempty"`
}

// VolumeSettings are the settings of a volume that may change. Its image may not: the volume
// is made from it only once.
type VolumeSettings struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// MountPath is where the guest of a container image mounts the volume.
	MountPath string `json:"mountPath,omitempty"`
}

// Stop is a stop that was begun and will be completed.
type Stop struct {
	By time.Time `json:"by,omitzero"`
}

// SettingsOf returns the settings of a spec, with the image of the root disk.
func SettingsOf(spec driver.ServerSpec, root image.Ref) Settings {
	s := Settings{
		CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes, Image: root, Ports: spec.Ports,
		SSHKeys: spec.SSHKeys, UserData: hashSecret(spec.UserData), NetworkData: hashSecret(spec.NetworkData),
		Command: spec.Command, Args: spec.Args, WorkingDir: spec.WorkingDir, User: spec.User, Init: string(spec.Init), Stdin: spec.Stdin, TTY: spec.TTY, Sysctls: spec.Sysctls, Env: hashEnv(spec.Env),
		MountPaths: driver.MountPaths(spec.Files),
	}
	if spec.Image.Kernel != nil {
		s.Kernel = *spec.Image.Kernel
	}
	for _, v := range spec.Volumes {
		s.Volumes = append(s.Volumes, VolumeSettings{v.Name, v.ReadOnly, v.MountPath})
	}
	return s
}

// hashEnv returns a hash of environment variables, whose values must not be stored.
func hashEnv(env []driver.EnvVar) string {
	if len(env) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, e := range env {
		_, _ = fmt.Fprintf(sum, "%q=%q\n", e.Name, e.Value.Reveal()) // never fails
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// hashSecret returns a hash of a secret, which must not be stored.
func hashSecret(s driver.Secret) string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:])
}

// RequestedImage returns the image that a spec names. If the spec names no image, it returns the
// present image, since a change of the default must not affect existing servers.
func RequestedImage(spec driver.ServerSpec, present image.Ref) image.Ref {
	if spec.Image.Source == "" {
		return present
	}
	return disks.RefOf(spec.Image)
}

// ImageOf returns the image that a spec names, or else the image that the root disk
// was made from.
func (r Record) ImageOf(spec driver.ServerSpec) image.Ref {
	return RequestedImage(spec, r.Root.Image.Ref)
}

// KeepsRoot reports whether the next run uses the root disk of the last run.
func (r Record) KeepsRoot(spec driver.ServerSpec) bool { return r.Root.Size > 0 && !spec.Ephemeral }

// NeedsRoot reports whether a root disk has to be made for the next run.
func (r Record) NeedsRoot(spec driver.ServerSpec) bool {
	return !r.KeepsRoot(spec) && (spec.RootDiskBytes > 0 || r.ImageOf(spec).Source.Kind != source.None)
}

// SizesToGrow returns the new sizes of the attached, writable disks that the spec wants larger.
// found reports whether there is such a disk.
func (r Record) SizesToGrow(spec driver.ServerSpec) (sizes control.Sizes, found bool) {
	sizes.Volumes = map[string]int64{}
	if r.Root.Size > 0 && spec.RootDiskBytes > r.Root.Size {
		sizes.RootDisk = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		isWritable := slices.ContainsFunc(r.Settings.Volumes, func(has VolumeSettings) bool { return has.Name == v.Name && !has.ReadOnly })
		if isWritable && v.SizeBytes > r.Volumes[v.Name].Size {
			sizes.Volumes[v.Name] = v.SizeBytes
		}
	}
	return sizes, sizes.RootDisk > 0 || len(sizes.Volumes) > 0
}

// DiskSizes returns the sizes of the writable disks, by the name of their node in QEMU.
func (r Record) DiskSizes() map[string]int64 {
	sizes := map[string]int64{}
	if r.Root.Size > 0 {
		sizes[launch.RootNode] = r.Root.Size
	}
	for _, v := range r.Settings.Volumes {
		if !v.ReadOnly {
			sizes[launch.VolumeNode(v.Name)] = r.Volumes[v.Name].Size
		}
	}
	return sizes
}

// Disks returns the root disk and all volumes.
func (r Record) Disks() []disks.Disk {
	return append(slices.Collect(maps.Values(r.Volumes)), r.Root)
}

// BaseImageNames returns the names of the images that a server's disks are based on, without
// duplicates.
func (r Record) BaseImageNames() []string {
	var names []string
	for _, disk := range r.Disks() {
		names = append(names, filepath.Base(disk.Image.Path))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
