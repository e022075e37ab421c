// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/source"
)

// RootDisk is the name of the root disk among disks. No volume can have it.
const RootDisk = ""

// Disk is a disk in the spec.
type Disk struct {
	Name  string // of the volume, or RootDisk
	Field string // of the spec, that has the size
	Bytes int64
	// IsFixed is set if the disk cannot grow.
	IsFixed bool
}

// Describe names the disk in messages.
func (d Disk) Describe() string {
	if d.Name == RootDisk {
		return "root disk"
	}
	return "volume " + d.Name
}

// DisksOf returns the disks of a spec that have PVCs.
func DisksOf(spec driver.ServerSpec) []Disk {
	var all []Disk
	if !spec.Ephemeral {
		all = append(all, Disk{RootDisk, "spec.resource.rootDisk", spec.RootDiskBytes, false})
	}
	for _, v := range spec.Volumes {
		all = append(all, Disk{v.Name, fmt.Sprintf("spec.volumes[%s].size", v.Name), v.SizeBytes, v.ReadOnly})
	}
	return all
}

// FindDisk returns a disk of a spec, nil if there is none of the name, and the source of its image.
func FindDisk(spec driver.ServerSpec, name, rootImage string) (disk *Disk, from source.Source) {
	disks := DisksOf(spec)
	if spec.Ephemeral {
		disks = append(disks, Disk{Name: RootDisk, Field: "spec.resource.rootDisk", Bytes: spec.RootDiskBytes})
	}
	from = source.Parse(rootImage)
	for _, v := range spec.Volumes {
		if v.Name == name && v.Image != nil {
			from = parseImage(*v.Image).Source
		}
	}
	if n := slices.IndexFunc(disks, func(d Disk) bool { return d.Name == name }); n >= 0 {
		disk = &disks[n]
	}
	return disk, from
}

// ClaimName returns the name of the PVC of a disk.
func ClaimName(base, name string) string {
	if name == RootDisk {
		return base
	}
	return base + "-" + name
}

// NewClaim returns the PVC of a disk.
func (t *Template) NewClaim(spec driver.ServerSpec, disk Disk, nonce string) *corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeFilesystem
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: t.newMeta(spec, ClaimName(BaseName(spec.Name, spec.UID), disk.Name), nonce),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(t.AccessMode)}, VolumeMode: &mode,
			StorageClassName: spec.StorageClassName,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: ClaimSize(disk.Bytes)}},
		},
	}
	t.SetClaimLabels(claim, spec, disk.Name)
	if disk.Name == RootDisk {
		newIdentity().annotate(claim)
	}
	return claim
}

const (
	// defaultDiskBytes is the size of the PVC of a server that leaves the size to the driver.
	defaultDiskBytes = 10 << 30
	// claimOverheadBytes and a claimOverheadShare-th of the disk are by how much a PVC is larger than its
	// disk, for the data of the file system and of the disk's format.
	claimOverheadBytes = 64 << 20
	claimOverheadShare = 16
)

// ClaimSize returns the size of a PVC with room for a disk.
func ClaimSize(bytes int64) resource.Quantity {
	if bytes == 0 {
		bytes = defaultDiskBytes
	}
	return *resource.NewQuantity(bytes+bytes/claimOverheadShare+claimOverheadBytes, resource.BinarySI)
}

// logBytes is the room for the container's log, which counts as ephemeral storage of its pod: five files
// of 10 MiB by the kubelet's default, which it measures only every few seconds.
const logBytes = 256 << 20

// ephemeralStorage returns what a server whose disk goes with its pod uses of its node's ephemeral storage.
func ephemeralStorage(spec driver.ServerSpec) resource.Quantity {
	size := ClaimSize(spec.RootDiskBytes)
	size.Add(*resource.NewQuantity(logBytes, resource.BinarySI))
	return size
}

// CheckStorage returns an error if a pod was admitted with less ephemeral storage than its server uses, as
// by a webhook: its kubelet would evict it, and the disk with it.
func CheckStorage(p *corev1.Pod, spec driver.ServerSpec) error {
	c := MachineContainer(p)
	if c == nil || !spec.Ephemeral {
		return nil
	}
	limit, isLimited := c.Resources.Limits[corev1.ResourceEphemeralStorage]
	wanted := ephemeralStorage(spec)
	if !isLimited || limit.Cmp(wanted) >= 0 {
		return nil
	}
	return driver.WithReason(reasonRefused, driver.Errorf(driver.ErrExhausted,
		"something in the cluster, such as a webhook, has limited the ephemeral storage of the pod %s/%s to %s, and a root disk of this size needs %s: raise the limit, or lower spec.resource.rootDisk",
		p.Namespace, p.Name, DescribeSize(limit), DescribeSize(wanted)))
}

// RoomOf returns the capacity of a volume in bytes, or the requested one while there is no volume.
func RoomOf(claim *corev1.PersistentVolumeClaim) int64 {
	room, ok := claim.Status.Capacity[corev1.ResourceStorage]
	if !ok {
		room = claim.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	return room.Value()
}

// Fit returns the size of a disk, reduced to the room that its volume has.
func Fit(bytes int64, claim *corev1.PersistentVolumeClaim) int64 {
	if claim == nil || bytes == 0 {
		return bytes
	}
	size := ClaimSize(bytes)
	if room := RoomOf(claim); room < size.Value() {
		return DiskIn(room)
	}
	return bytes
}

// DiskIn returns the size of the largest disk that fits into a volume.
func DiskIn(room int64) int64 {
	return max(0, room-claimOverheadBytes) / (claimOverheadShare + 1) * claimOverheadShare
}

// DiskSettings is the size to which a disk of a pod was made or grown.
type DiskSettings struct {
	Bytes int64 `json:"bytes,omitempty"`
	// RoomBytes is the capacity that its volume had then.
	RoomBytes int64 `json:"roomBytes,omitempty"`
}

// DescribeSize returns a size for messages.
func DescribeSize(q resource.Quantity) string {
	return fmt.Sprintf("%s (%d bytes)", q.String(), q.Value())
}
