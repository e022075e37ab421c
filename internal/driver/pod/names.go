// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// ownPrefix is that of the labels and annotations that only Drover writes.
const ownPrefix = "cloudnative.tw/"

// Labels of every object of a server. A tenant can write them, so they only select: see the
// package comment for what identifies an object.
const (
	LabelCluster = "cloudnative.tw/cluster"
	LabelUID     = "cloudnative.tw/uid"
	LabelName    = "cloudnative.tw/name"
	// LabelVolume, on a PVC, is the volume that it has; the PVC of a root disk has no such label.
	LabelVolume = "cloudnative.tw/volume"
	// LabelRetained marks a server that was released.
	LabelRetained = "cloudnative.tw/retained"
)

// Annotations of objects.
const (
	// AnnotationNonce is that of the intent to create the object.
	AnnotationNonce = "cloudnative.tw/nonce"
	// AnnotationEpoch is that of the leader that changed the object last.
	AnnotationEpoch = "cloudnative.tw/epoch"
	// AnnotationMachine, on a pod, is what drover-machine reads.
	AnnotationMachine = "cloudnative.tw/machine"
	// AnnotationSettings, on a pod, has what it was made from, to find out what has changed.
	AnnotationSettings = "cloudnative.tw/settings"
	// AnnotationRun, on the PVC of a root disk, is the UID of the last pod that could run.
	AnnotationRun = "cloudnative.tw/run"
	// AnnotationEnd, on that PVC, is how that pod ended, once that is proven (endRecord).
	AnnotationEnd = "cloudnative.tw/end"
	// AnnotationNeverRan, on that PVC, is the UID of the last pod that was removed before it
	// could run. Another leader may record that pod as AnnotationRun all the same.
	AnnotationNeverRan = "cloudnative.tw/never-ran"
	// AnnotationPaused, on a pod, is set from before its guest is paused until it was resumed.
	AnnotationPaused = "cloudnative.tw/paused"
)

// FinalizerStopped keeps a pod's object until the end of its containers is proven.
const FinalizerStopped = "cloudnative.tw/stopped"

// Kinds of a driver.Object.
const (
	kindPod    = "Pod"
	kindClaim  = "PersistentVolumeClaim"
	kindSecret = "Secret"
	kindBudget = "PodDisruptionBudget"
)

// maxName leaves room for the number and the name of a volume in the 253 characters of a name.
const maxName = 200

// baseName returns the name of a server's pod and of the PVC of its root disk.
func baseName(vm string, uid types.UID) string {
	short, _, _ := strings.Cut(string(uid), "-")
	return vm[:min(len(vm), maxName)] + "-" + strings.ToLower(short[:min(len(short), 8)])
}

// secretName returns the name of the Secret of a pod. Each pod has one of its own.
func secretName(base, nonce string) string { return base + "-" + nonce[:min(len(nonce), 8)] }

// serverID returns the ID of a server, as in default/web-1a2b3c4d.
func serverID(namespace, base string) string { return namespace + "/" + base }

// selector selects the objects of this cluster's servers, or of one server.
func (d *Driver) selector(uids ...types.UID) string {
	set := labels.Set{LabelCluster: d.ClusterID}
	if len(uids) == 1 {
		set[LabelUID] = string(uids[0])
	}
	return set.String()
}

// newMeta returns the metadata of an object that is about to be created.
func (d *Driver) newMeta(spec driver.ServerSpec, name, nonce string) metav1.ObjectMeta {
	all := map[string]string{}
	for key, value := range spec.Labels {
		if !strings.HasPrefix(key, ownPrefix) {
			all[key] = value
		}
	}
	all[LabelCluster], all[LabelUID], all[LabelName] = d.ClusterID, string(spec.UID), spec.Name
	return metav1.ObjectMeta{
		Namespace: spec.Namespace, Name: name, Labels: all,
		Annotations: map[string]string{AnnotationNonce: nonce, AnnotationEpoch: strconv.FormatUint(spec.Epoch, 10)},
	}
}

// enterEpoch returns ErrFenced if a later leader has changed an object, and else leaves the epoch
// on it. An epoch of zero is that of no leader.
func enterEpoch(o metav1.Object, epoch uint64) error {
	all := o.GetAnnotations()
	last, err := strconv.ParseUint(all[AnnotationEpoch], 10, 64)
	switch {
	case epoch == 0:
		return nil
	case err == nil && last > epoch:
		return driver.Errorf(driver.ErrFenced, "%s was changed under epoch %d: epoch %d is over", o.GetName(), last, epoch)
	}
	if all == nil {
		all = map[string]string{}
	}
	all[AnnotationEpoch] = strconv.FormatUint(epoch, 10)
	o.SetAnnotations(all)
	return nil
}

// describe returns what an object is called in messages.
func describe(kind string, o metav1.Object) string {
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}
