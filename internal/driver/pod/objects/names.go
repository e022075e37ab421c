// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// prefix begins the keys of the labels and annotations that only Drover writes.
const prefix = "cloudnative.tw/"

// Labels of every object of a server. A tenant can write them, so they only select: the
// package comment says which marks identify an object.
const (
	LabelCluster = "cloudnative.tw/cluster"
	LabelUID     = "cloudnative.tw/uid"
	LabelName    = "cloudnative.tw/name"
	// LabelVolume, on a PVC, names its volume. The PVC of a root disk has no such label.
	LabelVolume = "cloudnative.tw/volume"
	// LabelRetained marks a server that was released.
	LabelRetained = "cloudnative.tw/retained"
)

// Annotations of objects.
const (
	// AnnotationNonce is the nonce of the intent to create the object.
	AnnotationNonce = "cloudnative.tw/nonce"
	// AnnotationEpoch is the epoch of the leader that changed the object last.
	AnnotationEpoch = "cloudnative.tw/epoch"
	// AnnotationMachine, on a pod, is the description that drover-machine reads.
	AnnotationMachine = "cloudnative.tw/machine"
	// AnnotationSettings, on a pod, has the settings that the pod was made from, to find changes of the spec.
	AnnotationSettings = "cloudnative.tw/settings"
	// AnnotationRun, on the PVC of a root disk, is the UID of the last pod that could run.
	AnnotationRun = "cloudnative.tw/run"
	// AnnotationEnd, on that PVC, is how that pod ended, once that is proven (endRecord).
	AnnotationEnd = "cloudnative.tw/end"
	// AnnotationNeverRan, on that PVC, is the UID of the last pod that was removed before it could run.
	// Another leader may still record that pod as AnnotationRun.
	AnnotationNeverRan = "cloudnative.tw/never-ran"
	// AnnotationUsedNonces, on that PVC, has the nonces of the last pods that were removed, with spaces
	// between them. No other pod is created with one. The VirtualMachine's status may have the next nonce
	// by then.
	AnnotationUsedNonces = "cloudnative.tw/used-nonces"
	// AnnotationClaim, on a PVC, is the UID of this PVC. It is set before the first pod that can use the PVC. A
	// copy of the PVC, such as one that is restored from a backup, has another UID.
	AnnotationClaim = "cloudnative.tw/claim"
	// AnnotationUUID and AnnotationMAC, on the PVC of a root disk, are the UUID and the MAC address of the machine. A PVC of
	// an earlier version gets them with its next pod.
	AnnotationUUID = "cloudnative.tw/machine-uuid"
	AnnotationMAC  = "cloudnative.tw/machine-mac"
	// AnnotationAssertionRefused, on a pod, is set once an operator has asserted that its machine is
	// off while its node was ready. It is removed with the assertion.
	AnnotationAssertionRefused = "cloudnative.tw/assertion-refused"
	// AnnotationBoot, on a pod, has the system and the boot of the node in which the machine runs, as the
	// kubelet reported them after the machine was started.
	AnnotationBoot = "cloudnative.tw/boot"
	// AnnotationReadiness, on a pod, has the port and the timeout for its readiness probe: a description.Readiness as JSON.
	AnnotationReadiness = "cloudnative.tw/readiness"
	// AnnotationEviction, on a pod, is EvictionBlock while a PodDisruptionBudget refuses evictions.
	AnnotationEviction = "cloudnative.tw/eviction"
	// AnnotationLabels, on a pod, names the labels that the pod has from its VirtualMachine, separated by
	// commas. Drover does not remove other labels.
	AnnotationLabels = "cloudnative.tw/labels"
	// AnnotationPaused, on a pod, is set from before its guest is paused until the guest is resumed.
	AnnotationPaused = "cloudnative.tw/paused"
)

// EvictionBlock is the value of AnnotationEviction.
const EvictionBlock = "Block"

// FinalizerStopped keeps the object of a pod until the end of its containers is proven.
const FinalizerStopped = "cloudnative.tw/stopped"

// Kinds of a driver.Object.
const (
	KindPod    = "Pod"
	KindClaim  = "PersistentVolumeClaim"
	KindSecret = "Secret"
	KindBudget = "PodDisruptionBudget"
)

// maxName limits the name of a VirtualMachine, which is the value of a label.
const maxName = 63

// BaseName returns the name of a server's pod and of the PVC of its root disk.
func BaseName(vm string, uid types.UID) string {
	short, _, _ := strings.Cut(string(uid), "-")
	return vm[:min(len(vm), maxName)] + "-" + strings.ToLower(short[:min(len(short), 8)])
}

// SecretName returns the name of the Secret of a pod. Each pod has a separate one.
func SecretName(base, nonce string) string { return base + "-" + nonce[:min(len(nonce), 8)] }

// ServerID returns the ID of a server, as in default/web-1a2b3c4d.
func ServerID(namespace, base string) string { return namespace + "/" + base }

// Selector selects the objects of a cluster's servers, or of one server if a single UID is given.
func Selector(clusterID string, uids ...types.UID) string {
	set := labels.Set{LabelCluster: clusterID}
	if len(uids) == 1 {
		set[LabelUID] = string(uids[0])
	}
	return set.String()
}

// ownLabels returns the labels that every object of a server has. Claims, Secrets and budgets have no
// others: a tool that prunes what carries its label, but is not in its manifests, would remove them.
func (t *Template) ownLabels(spec driver.ServerSpec) map[string]string {
	return map[string]string{LabelCluster: t.ClusterID, LabelUID: string(spec.UID), LabelName: spec.Name}
}

// SetOwnLabels gives a pod the labels by which Drover finds it.
func (t *Template) SetOwnLabels(p *corev1.Pod, spec driver.ServerSpec) {
	addLabels(&p.ObjectMeta, t.ownLabels(spec))
}

// SetClaimLabels gives the PVC of a disk the labels by which Drover finds it.
func (t *Template) SetClaimLabels(claim *corev1.PersistentVolumeClaim, spec driver.ServerSpec, disk string) {
	addLabels(&claim.ObjectMeta, t.ownLabels(spec))
	if disk != RootDisk {
		claim.Labels[LabelVolume] = disk
	}
}

// inheritedLabels returns the labels that a pod has from its VirtualMachine, so that Services and policies
// select it. A pod without an owner has none, for the same reason as a claim.
func inheritedLabels(p *corev1.Pod, ofVM map[string]string) map[string]string {
	all := map[string]string{}
	if len(p.OwnerReferences) > 0 {
		maps.Copy(all, ofVM)
		maps.DeleteFunc(all, func(key, _ string) bool { return strings.HasPrefix(key, prefix) })
	}
	return all
}

// HasLabels reports whether a pod has the labels of its VirtualMachine, and none that the VirtualMachine
// had before. A pod that has lost the record of its labels does not show the latter.
func HasLabels(p *corev1.Pod, ofVM map[string]string) bool {
	wanted := inheritedLabels(p, ofVM)
	if len(wanted) > 0 && p.Annotations[AnnotationLabels] == "" {
		return false
	}
	for key, value := range wanted {
		if p.Labels[key] != value {
			return false
		}
	}
	return !slices.ContainsFunc(labelsFromVM(p), func(key string) bool { _, ok := wanted[key]; return !ok })
}

// SetLabels replaces the labels that a pod has from its VirtualMachine. The pod has its owner already.
func SetLabels(p *corev1.Pod, ofVM map[string]string) {
	for _, key := range labelsFromVM(p) {
		delete(p.Labels, key)
	}
	delete(p.Annotations, AnnotationLabels)
	wanted := inheritedLabels(p, ofVM)
	addLabels(&p.ObjectMeta, wanted)
	if keys := slices.Sorted(maps.Keys(wanted)); len(keys) > 0 {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationLabels, strings.Join(keys, ","))
	}
}

// addLabels adds labels to an object, which may have lost all that it had.
func addLabels(meta *metav1.ObjectMeta, labels map[string]string) {
	for key, value := range labels {
		metav1.SetMetaDataLabel(meta, key, value)
	}
}

// labelsFromVM returns the keys of the labels that a pod has from its VirtualMachine.
func labelsFromVM(p *corev1.Pod) []string {
	return strings.FieldsFunc(p.Annotations[AnnotationLabels], func(r rune) bool { return r == ',' })
}

// newMeta returns the metadata of an object that is about to be created.
func (t *Template) newMeta(spec driver.ServerSpec, name, nonce string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: spec.Namespace, Name: name, Labels: t.ownLabels(spec),
		Annotations: map[string]string{AnnotationNonce: nonce, AnnotationEpoch: strconv.FormatUint(spec.Epoch, 10)},
	}
}

// reasonLaterEpoch is the reason of an error of EnterEpoch, shown as status.reason.
const reasonLaterEpoch = "LaterEpoch"

// EnterEpoch writes an epoch to an object. It returns an ErrRetry if a later leader has changed the
// object. It does not return an ErrFenced, which suspends the driver, since anyone who may change the
// object may have written the epoch. An epoch of zero belongs to no leader and is not compared.
func EnterEpoch(o metav1.Object, epoch uint64) error {
	all := o.GetAnnotations()
	last, err := strconv.ParseUint(all[AnnotationEpoch], 10, 64)
	switch {
	case epoch == 0:
		return nil
	case err == nil && last > epoch:
		return driver.WithReason(reasonLaterEpoch, driver.Errorf(driver.ErrRetry,
			"%s has the annotation %s with %d, and this controller's is %d: a later leader has changed it, or a person, who has to remove the annotation", o.GetName(), AnnotationEpoch, last, epoch))
	}
	if all == nil {
		all = map[string]string{}
	}
	all[AnnotationEpoch] = strconv.FormatUint(epoch, 10)
	o.SetAnnotations(all)
	return nil
}

// IsForeignClaim reports whether an object is a PVC that Drover has not made: a copy of one that was used, or one
// that was restored with the labels alone. It has data that is not Drover's to delete.
func IsForeignClaim(o metav1.Object) bool {
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false
	}
	of := claim.Annotations[AnnotationClaim]
	return claim.Annotations[AnnotationNonce] == "" || of != "" && of != string(claim.UID)
}

// MarkClaim sets AnnotationClaim on a PVC.
func MarkClaim(claim *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, AnnotationClaim, string(claim.UID))
}

// Describe returns the kind and name of an object for messages.
func Describe(kind string, o metav1.Object) string {
	return fmt.Sprintf("%s %s/%s", kind, o.GetNamespace(), o.GetName())
}
