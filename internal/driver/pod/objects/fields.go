// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"cloudnative.tw/drover/internal/driver"
)

// Settings are the settings that a pod was made from. AnnotationSettings has them as JSON.
type Settings struct {
	Digests `json:",inline"`

	CPUMilli    int64  `json:"cpuMilli"`
	MemoryBytes int64  `json:"memoryBytes"`
	Image       string `json:"image,omitempty"`
	Checksum    string `json:"checksum,omitempty"` // of the image
	// Images are the images that tags were resolved to.
	Images    []driver.ResolvedImage `json:"images,omitempty"`
	Kernel    *driver.Kernel         `json:"kernel,omitempty"`
	Ports     []driver.Port          `json:"ports,omitempty"`
	SSHKeys   []string               `json:"sshKeys,omitempty"`
	Placement driver.Placement       `json:"placement"`
	GraceSecs int64                  `json:"graceSeconds"`
	Volumes   []volumeSettings       `json:"volumes,omitempty"`
	// MadeFrom is the image that the root disk was made from, nil if the pod is to make the disk.
	MadeFrom *driver.ResolvedImage `json:"madeFrom,omitempty"`
	// Disks are the disks that have PVCs, by name. They may grow during a run.
	Disks map[string]DiskSettings `json:"disks,omitempty"`
}

// Digests stand for the texts of a spec that may be secret.
type Digests struct {
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`
}

// volumeSettings are the settings of a volume that change only at a restart.
type volumeSettings struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// settingsChange has the settings of a pod and those that its spec asks for.
type settingsChange struct{ present, wanted Settings }

// PendingFields names the fields of the spec that wait for the next pod.
func PendingFields(present, wanted Settings) []string {
	return fields.Pending(settingsChange{present, wanted})
}

// maxSource, in characters, and maxDigest limit what the status of a VirtualMachine takes.
const (
	maxSource = 1024
	maxDigest = 253
)

// ReadSettings returns the settings that a pod was made from. Users may change the annotation, so a value that is
// damaged or too long for the status is left out: it differs from the spec then and waits for a restart.
func ReadSettings(p *corev1.Pod) (s Settings) {
	_ = json.Unmarshal([]byte(p.Annotations[AnnotationSettings]), &s)
	if utf8.RuneCountInString(s.Image) > maxSource {
		s.Image = ""
	}
	if len(s.Checksum) > maxDigest {
		s.Checksum = ""
	}
	if s.MadeFrom != nil && len(s.MadeFrom.Digest) > maxDigest {
		s.MadeFrom.Digest = ""
	}
	for n := range s.Ports {
		s.Ports[n].Name = containerPortName(p, s.Ports[n])
	}
	return s
}

// containerPortName returns the name by which Services can select a port of the pod, "" if it has none.
func containerPortName(p *corev1.Pod, port driver.Port) string {
	for _, c := range p.Spec.Containers {
		for _, have := range c.Ports {
			if c.Name == ContainerName && have.ContainerPort == port.Port && string(have.Protocol) == port.Protocol {
				return have.Name
			}
		}
	}
	return ""
}

// Settings returns what the pod of a spec is made from, without its disks.
func (t *Template) Settings(spec driver.ServerSpec, digests Digests) Settings {
	image := t.rootImage(spec)
	s := Settings{
		CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes, Image: image.Source.Text(), Checksum: image.Checksum, Kernel: image.kernel,
		SSHKeys: spec.SSHKeys, Digests: digests,
		Placement: spec.Placement, GraceSecs: graceSeconds(spec),
	}
	for _, p := range spec.Ports {
		p.Name = portName(p.Name)
		s.Ports = append(s.Ports, p)
	}
	for _, v := range spec.Volumes {
		s.Volumes = append(s.Volumes, volumeSettings{v.Name, v.ReadOnly})
	}
	return s
}

var fields = slices.Concat(driver.Fields[settingsChange]{
	{Name: "action", Support: driver.AppliedLive},
	{Name: "shutdownGracePeriodSeconds", Support: driver.AppliedLive},
	{Name: "restartPolicy", Support: driver.AppliedLive},
	{Name: "resource.cpu", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.CPUMilli })},
	{Name: "resource.memory", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.MemoryBytes })},
	{Name: "resource.rootDisk", Support: driver.AppliedLive}, // it may only grow
	{
		Name: "image", Support: driver.AppliedAtRestart, Parts: []string{"source", "checksum", "kernel.source", "kernel.initrd", "kernel.cmdline"},
		Differs: comparePart(func(s Settings) any { return []any{s.Image, s.Checksum, s.Kernel} }),
	},
	{Name: "image.pullPolicy", Support: driver.AppliedLive},
	{
		Name: "volumes", Support: driver.AppliedAtRestart, Parts: []string{"name", "readOnly"},
		Differs: comparePart(func(s Settings) any { return s.Volumes }),
	},
	{Name: "volumes.size", Support: driver.AppliedLive}, // it may only grow
	{Name: "volumes.mountPath", Support: driver.Unsupported, Hint: "the guest of a disk image mounts its volumes itself; leave it out"},
	{Name: "volumes.source.image", Support: driver.AppliedAtCreation, Parts: []string{"source", "checksum", "pullPolicy"}},
	{Name: "volumes.source.image.kernel", Support: driver.Unsupported, Hint: "a volume is not booted; leave the kernel out"},
	{
		Name: "ports", Support: driver.AppliedAtRestart, Parts: []string{"name", "protocol", "port"},
		Differs: comparePart(func(s Settings) any { return s.Ports }),
	},
	{Name: "ports.hostPort", Support: driver.Unsupported, Hint: "a machine answers at its pod's address; use a Service to expose it"},
	{Name: "ports.hostIP", Support: driver.Unsupported, Hint: "a machine answers at its pod's address; use a Service to expose it"},
	{Name: "sshAuthorizedKeys", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.SSHKeys })},
	{Name: "userData", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.UserData })},
	{Name: "networkData", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.NetworkData })},
	{Name: "ephemeral", Support: driver.AppliedAtCreation},
	{Name: "storageClassName", Support: driver.AppliedAtCreation},
	{Name: "evictionPolicy", Support: driver.AppliedLive},
	{Name: "nodeSelector", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.NodeSelector })},
	{Name: "affinity", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.Affinity })},
	{Name: "tolerations", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.Tolerations })},
	{Name: "topologySpreadConstraints", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.TopologySpreadConstraints })},
	{Name: "priorityClassName", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.PriorityClassName })},
	{Name: "runtimeClassName", Support: driver.AppliedAtRestart, Differs: comparePart(func(s Settings) any { return s.Placement.RuntimeClassName })},
}, driver.UnsupportedCommandFields[settingsChange]())

// comparePart returns a function that compares a part of the settings. Empty lists equal missing ones.
func comparePart(part func(Settings) any) func(settingsChange) bool {
	return func(c settingsChange) bool { return !equality.Semantic.DeepEqual(part(c.present), part(c.wanted)) }
}

// SupportedFields returns how each field of a spec is supported.
func SupportedFields() map[string]driver.Support { return fields.Support() }
