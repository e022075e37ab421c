// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects makes the manifests of a server's objects, which are a pod, PVCs, a Secret and a
// PodDisruptionBudget, and refuses specs that they cannot express. It is pure: it reaches no cluster.
//
// Start with NewPod in manifest.go. names.go has the names, labels and annotations by which objects are
// found, fields.go what a pod was made from, disks.go the PVCs, images.go the images, spec.go the checks of
// specs, and errors.go the meaning of the cluster's refusals.
package objects

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Template has the settings that the objects of all servers have in common.
type Template struct {
	// ClusterID is a label of every object.
	ClusterID string
	// MachineImage is the image of drover-machine.
	MachineImage string
	// Image is the container disk of a server without image.source; empty for none.
	Image string
	// ImageMaxBytes limits the size of an image that a machine fetches. With 0 the machine decides.
	ImageMaxBytes int64
	// AccessMode is the access mode of all PVCs.
	AccessMode string
	// MemoryOverheadBytes is how much a pod may use in addition to the memory of its guest.
	MemoryOverheadBytes int64
}

var accessModes = []string{string(corev1.ReadWriteOncePod), string(corev1.ReadWriteOnce), string(corev1.ReadWriteMany)}

// Check rejects a template with which no object can be made. Its errors name the flags.
func (t *Template) Check() error {
	switch {
	case !slices.Contains(accessModes, t.AccessMode):
		return fmt.Errorf("--pod-access-mode is %q: it must be one of %v", t.AccessMode, accessModes)
	case t.MachineImage == "":
		return fmt.Errorf("--pod-machine-image is empty: it must be the image of drover-machine")
	}
	return nil
}
