// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package record has the record of a server that the qemu driver stores, as a JSON file
// beside the server's disks.
//
// Start with Record.
package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/output"
)

// Phase is how far a server's run has come; empty before the first.
type Phase string

const (
	// PhaseStarting means that its QEMU is being started. If a server in this phase does not
	// run, its start was interrupted, and its guest did nothing.
	PhaseStarting Phase = "starting"
	// PhaseOn means that it runs, or that it ran and a separate file has its exit.
	PhaseOn Phase = "on"
)

// Format is the format of records that this version reads and writes.
const Format = 1

// Record is the stored state of a server. Only the holder of the server's lock writes it.
type Record struct {
	// Format is the format of the record.
	Format    int       `json:"format"`
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
	// CPUGroup is the control group that limits the run to a fraction of a CPU; CPUNote says
	// why there is none.
	CPUGroup string `json:"cpuGroup,omitempty"`
	CPUNote  string `json:"cpuNote,omitempty"`

	// MachineType is the machine type, which the server keeps for life.
	MachineType string `json:"machineType"`
	// Accelerator of the last run.
	Accelerator string `json:"accelerator,omitempty"`
	// Forwards of the last run.
	Forwards []hostports.Forward `json:"forwards,omitempty"`
	// Egress is where the guest may connect to.
	Egress control.Egress `json:"egress,omitzero"`
	// NetworkRevision is the revision of Forwards and Egress, which describe the edge that the machine should have.
	NetworkRevision control.Revision `json:"networkRevision,omitzero"`
	// Address is the address that the machine gets before its first run, with the length of the network's prefix.
	Address netip.Prefix `json:"address,omitzero"`
	// Guest is set if the last run was of a container image.
	Guest *Guest `json:"guest,omitempty"`

	Settings Settings   `json:"settings"`
	Root     disks.Disk `json:"root"`
	// Volumes are the volumes by name, including those that are not attached any more.
	Volumes map[string]disks.Disk `json:"volumes,omitempty"`
}

// Guest has the values of a run of a container image.
type Guest struct {
	// Nonce is the secret by which Drover's program in the guest recognizes its host.
	Nonce []byte `json:"nonce"`
	// Kernel is the digest of the kernel.
	Kernel string `json:"kernel"`
	// Output is nil for a run that an earlier version has started, whose output is in the serial log.
	Output *Output `json:"output,omitempty"`
}

// Output has the positions at which the output of a run and of the run before begins. Previous is nil without one.
type Output struct {
	Begin    output.Positions  `json:"begin"`
	Previous *output.Positions `json:"previous,omitempty"`
}

// Settings are the parts of the spec that take a restart to change.
type Settings struct {
	CPUMilli    int64            `json:"cpuMilli"`
	MemoryBytes int64            `json:"memoryBytes"`
	Image       image.Ref        `json:"image,omitzero"`
	Kernel      driver.Kernel    `json:"kernel,omitzero"`
	Ports       []driver.Port    `json:"ports,omitempty"`
	Volumes     []VolumeSettings `json:"volumes,omitempty"`
	SSHKeys     []string         `json:"sshKeys,omitempty"`
	// UserData and NetworkData are hashes, which show whether the texts changed.
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`

	Command    []string `json:"command,omitempty"`
	Args       []string `json:"args,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	// Env is a hash, since values may be of Secrets.
	Env string `json:"env,omitempty"`
}

// VolumeSettings are a volume's settings without its image, from which the volume is made
// only once.
type VolumeSettings struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Stop is a stop that was begun and will be completed.
type Stop struct {
	By time.Time `json:"by,omitzero"`
}

// SettingsOf returns the settings of a spec, for a server whose image is known.
func SettingsOf(spec driver.ServerSpec, root image.Ref) Settings {
	s := Settings{
		CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes, Image: root, Ports: spec.Ports,
		SSHKeys: spec.SSHKeys, UserData: hashSecret(spec.UserData), NetworkData: hashSecret(spec.NetworkData),
		Command: spec.Command, Args: spec.Args, WorkingDir: spec.WorkingDir, Env: hashEnv(spec.Env),
	}
	if spec.Image.Kernel != nil {
		s.Kernel = *spec.Image.Kernel
	}
	for _, v := range spec.Volumes {
		s.Volumes = append(s.Volumes, VolumeSettings{v.Name, v.ReadOnly})
	}
	return s
}

// hashEnv returns a value by which two lists of variables can be compared without keeping them.
func hashEnv(env []driver.EnvVar) string {
	if len(env) == 0 {
		return ""
	}
	sum := sha256.New()
	for _, e := range env {
		_, _ = fmt.Fprintf(sum, "%q=%q\n", e.Name, e.Value.Reveal()) // a hash takes anything
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// hashSecret returns a value by which two secrets can be compared without keeping them.
func hashSecret(s driver.Secret) string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:])
}

// RequestedImage returns the image that a spec requests, or else the present one: a change of
// the default affects no server.
func RequestedImage(spec driver.ServerSpec, have image.Ref) image.Ref {
	if spec.Image.Source == "" {
		return have
	}
	return disks.RefOf(spec.Image)
}

// ImageOf returns the image that a spec requests, or the one that the root disk
// stands on.
func (r Record) ImageOf(spec driver.ServerSpec) image.Ref {
	return RequestedImage(spec, r.Root.Image.Ref)
}

// KeepsRoot reports whether the next run has the root disk of the last one.
func (r Record) KeepsRoot(spec driver.ServerSpec) bool { return r.Root.Size > 0 && !spec.Ephemeral }

// NeedsRoot reports whether a root disk is to be made for the next run.
func (r Record) NeedsRoot(spec driver.ServerSpec) bool {
	return !r.KeepsRoot(spec) && (spec.RootDiskBytes > 0 || r.ImageOf(spec).Source.Kind != source.None)
}

// SizesToGrow returns the sizes of the disks that the spec wants larger and that can grow as they
// are attached now, and whether there are any.
func (r Record) SizesToGrow(spec driver.ServerSpec) (sizes control.Sizes, found bool) {
	sizes.Volumes = map[string]int64{}
	if r.Root.Size > 0 && spec.RootDiskBytes > r.Root.Size {
		sizes.RootDisk = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		if slices.Contains(r.Settings.Volumes, VolumeSettings{Name: v.Name}) && v.SizeBytes > r.Volumes[v.Name].Size {
			sizes.Volumes[v.Name] = v.SizeBytes
		}
	}
	return sizes, sizes.RootDisk > 0 || len(sizes.Volumes) > 0
}

// DiskSizes returns the sizes of the disks that can grow, by QEMU's name for them.
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

// Disks returns the root disk and the volumes that were made.
func (r Record) Disks() []disks.Disk {
	return append(slices.Collect(maps.Values(r.Volumes)), r.Root)
}

// BaseImageNames returns the names of the images that a server's disks stand on, each
// once.
func (r Record) BaseImageNames() []string {
	var names []string
	for _, disk := range r.Disks() {
		names = append(names, filepath.Base(disk.Image.Path))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
