// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/machine/launch"
)

// identity has the UUID and the MAC address of a machine.
type identity struct{ uuid, mac string }

func newIdentity() identity { return identity{string(uuid.NewUUID()), launch.NewMAC()} }

// identityOf returns the identity of the machine of a root disk. Users may have changed the annotations: an invalid one
// counts as missing, as on a PVC of an earlier version, whose machine has an identity that follows from the UID. A
// machine without a PVC has a new identity in each pod, as its disk is new.
func identityOf(root *corev1.PersistentVolumeClaim, uid types.UID) identity {
	if root == nil {
		return newIdentity()
	}
	i := identity{root.Annotations[AnnotationUUID], root.Annotations[AnnotationMAC]}
	if launch.CheckUUID(i.uuid) != nil {
		i.uuid = string(uid)
	}
	if launch.CheckMAC(i.mac) != nil {
		i.mac = launch.DeriveMAC(string(uid))
	}
	return i
}

// annotate sets the annotations of the PVC of a root disk.
func (i identity) annotate(root *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&root.ObjectMeta, AnnotationUUID, i.uuid)
	metav1.SetMetaDataAnnotation(&root.ObjectMeta, AnnotationMAC, i.mac)
}

// RecordIdentity sets the annotations that the PVC of a root disk lacks.
func RecordIdentity(root *corev1.PersistentVolumeClaim, uid types.UID) {
	identityOf(root, uid).annotate(root)
}
