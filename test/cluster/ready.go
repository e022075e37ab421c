// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// StorageClass is the default StorageClass. Its volumes are folders of nodes, so that
// kube-scheduler chooses a volume and a node together.
const StorageClass = "local"

func (c *Cluster) waitUntilUsable(ctx context.Context) error {
	ctx, cancel := control.WithEnd(ctx, c.rig.Ended)
	defer cancel()
	return assert.Poll(ctx, "pods can run on all nodes", func() error { return c.checkUsable(ctx) })
}

// checkUsable returns an error unless pods can run on all nodes, for which they need a ServiceAccount.
func (c *Cluster) checkUsable(ctx context.Context) error {
	for _, node := range c.Nodes() {
		ready, err := node.IsReady(ctx)
		if err != nil {
			return err
		}
		if !ready {
			return fmt.Errorf("node %s is not Ready", node.Name)
		}
	}
	_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// addStorage adds a StorageClass and volumes for it.
func (c *Cluster) addStorage(ctx context.Context) error {
	mode, expands := storagev1.VolumeBindingWaitForFirstConsumer, true
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: StorageClass, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &mode,
		// A claim may grow up to the size of its volume, which is larger than most claims.
		AllowVolumeExpansion: &expands,
	}
	if _, err := c.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := 1; i <= c.plan.Nodes; i++ {
		for number := range plan.Volumes {
			volume := newVolume(plan.NodeName(i), number)
			if _, err := c.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func newVolume(node string, number int) *corev1.PersistentVolume {
	name := fmt.Sprintf("%s-%d", node, number)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:              StorageClass,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			AccessModes:                   accessModes(number),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: fmt.Sprintf("/var/lib/volumes/%d", number)},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
				}}}},
			}},
		},
	}
}

// accessModes returns ReadWriteOncePod for every other volume: a volume with this mode cannot have others.
func accessModes(number int) []corev1.PersistentVolumeAccessMode {
	if number%2 == 1 {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadOnlyMany}
}
