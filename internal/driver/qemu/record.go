// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/machine"
)

// Names in a server's directory, beside those of its machine.
const (
	recordFile   = "server.json"
	rootDiskFile = "root.qcow2"
	oldRootFile  = "root.old.qcow2"
)

// phase is how far a server's run has come; empty before the first.
type phase string

const (
	// phaseStarting means that its QEMU is being started. A server in this phase that does
	// not run got no further, and its guest did nothing.
	phaseStarting phase = "starting"
	// phaseOn means that it runs, or that it ran and its exit is in a file of its own.
	phaseOn phase = "on"
)

// record is what is stored of a server, by the holder of its lock.
type record struct {
	ClusterID string    `json:"clusterID"`
	UID       types.UID `json:"uid"`
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Epoch     uint64    `json:"epoch"`
	Retained  bool      `json:"retained,omitempty"`

	Phase     phase     `json:"phase,omitempty"`
	Run       string    `json:"run,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	Stop      *stop     `json:"stop,omitempty"`
	// GraceSeconds is the grace period of the spec, for a shutdown of the host; nil in a
	// record of an older version.
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`
	// CPUGroup is the control group that limits the run to a fraction of a CPU; CPUNote says
	// why there is none.
	CPUGroup string `json:"cpuGroup,omitempty"`
	CPUNote  string `json:"cpuNote,omitempty"`

	// MachineType is the machine type, which the server keeps for life. It is empty in a
	// record of an older version until the next start, which takes the newest as that
	// version did.
	MachineType string `json:"machineType,omitempty"`
	// Accelerator of the last run; empty where an older version started it.
	Accelerator string `json:"accelerator,omitempty"`
	// Forwards are those of the last run.
	Forwards []machine.Forward `json:"forwards,omitempty"`

	Settings settings   `json:"settings"`
	Root     disks.Disk `json:"root"`
	// Old is the previous root disk, of a replacement that an older version began and did
	// not finish: see restoreRoot.
	Old *disks.Disk `json:"old,omitempty"`
	// Volumes are the volumes by name, including those that are not attached any more.
	Volumes map[string]disks.Disk `json:"volumes,omitempty"`
}

// settings are the parts of the spec that take a restart to change.
type settings struct {
	CPUMilli    int64               `json:"cpuMilli"`
	MemoryBytes int64               `json:"memoryBytes"`
	Image       disks.ImageSettings `json:"image,omitzero"`
	Kernel      driver.Kernel       `json:"kernel,omitzero"`
	Ports       []driver.Port       `json:"ports,omitempty"`
	Volumes     []volumeSettings    `json:"volumes,omitempty"`
	SSHKeys     []string            `json:"sshKeys,omitempty"`
	// UserData and NetworkData are hashes, which show whether the texts changed.
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`
}

// volumeSettings are a volume's settings without its image: a volume is made of that only
// once.
type volumeSettings struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// stop is a stop that was begun and will be completed.
type stop struct {
	By time.Time `json:"by,omitzero"`
}

// settingsOf returns the settings of a spec, for a server whose image is known.
func settingsOf(spec driver.ServerSpec, image disks.ImageSettings) settings {
	s := settings{
		CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes, Image: image, Ports: spec.Ports,
		SSHKeys: spec.SSHKeys, UserData: hashSecret(spec.UserData), NetworkData: hashSecret(spec.NetworkData),
	}
	if spec.Image.Kernel != nil {
		s.Kernel = *spec.Image.Kernel
	}
	for _, v := range spec.Volumes {
		s.Volumes = append(s.Volumes, volumeSettings{v.Name, v.ReadOnly})
	}
	return s
}

// pendingFields names the fields of the spec that the settings do not have yet.
func (s settings) pendingFields(want settings) []string {
	return fields.Pending(settingsChange{s, want})
}

func (d *Driver) retainedPath(uid types.UID, id string) string {
	return d.dir.Path(retainedDir, string(uid)+"."+id)
}

// hashSecret returns a value by which two secrets can be compared without keeping them.
func hashSecret(s driver.Secret) string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:])
}
