// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// recordedObject returns the record of an object, nil if there is none.
func (c *claims) recordedObject(kind, name string) *driver.Object {
	return objects.FindRecorded(c.spec.Objects, kind, name)
}

// recordFirst returns the error that makes the caller of Ensure record objects.
func (c *claims) recordFirst(failure error, changed ...driver.Object) error {
	return objects.RecordFirst(c.spec.Objects, failure, changed...)
}

// checkRecorded refuses an object that was not made for the VirtualMachine. Its UID has to be the recorded
// one, or its nonce that of an intent whose UID is not recorded yet.
func (c *claims) checkRecorded(kind string, o metav1.Object) error {
	recorded := c.recordedObject(kind, o.GetName())
	switch {
	case recorded != nil && recorded.UID == o.GetUID():
		return nil
	case recorded != nil && recorded.UID == "" && recorded.Nonce != "" && recorded.Nonce == o.GetAnnotations()[objects.AnnotationNonce] && !c.isNonceUsed(recorded):
		return nil
	}
	return objects.UnknownError(kind, o)
}

// restoreLabels puts the labels back on the pod and the PVCs that others have taken them from. The status of
// the VirtualMachine proves which ones these are. It is done before anything else, because the PVC of the
// root disk records what becomes of the pod.
func (c *convergence) restoreLabels(ctx context.Context) error {
	for _, o := range c.Unlabelled {
		var err error
		switch o := o.(type) {
		case *corev1.Pod:
			if c.checkRecorded(objects.KindPod, o) == nil {
				c.Pod = o
				err = c.updatePod(ctx, func(p *corev1.Pod) { c.driver.Objects.SetOwnLabels(p, c.spec) })
			}
		case *corev1.PersistentVolumeClaim:
			if !objects.IsForeignClaim(o) && c.checkRecorded(objects.KindClaim, o) == nil {
				err = c.restoreClaim(ctx, o)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreClaim puts the labels back on a PVC of the server.
func (c *claims) restoreClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	for _, disk := range objects.DisksOf(c.spec) {
		if objects.ClaimName(c.Key.Name, disk.Name) != claim.Name {
			continue
		}
		c.Claims[disk.Name] = claim
		return c.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) { c.driver.Objects.SetClaimLabels(claim, c.spec, disk.Name) })
	}
	return nil
}

// isNonceUsed reports whether the pod with a recorded nonce was created and removed. The record is
// outdated then: another leader may have recorded the next pod since.
func (c *claims) isNonceUsed(r *driver.Object) bool {
	return r.Kind == objects.KindPod && c.Claims.Root() != nil && slices.Contains(strings.Fields(c.Claims.Root().Annotations[objects.AnnotationUsedNonces]), r.Nonce)
}

// newIntents returns new records, with nonces, of the objects that the next steps create.
func (c *claims) newIntents(ctx context.Context) []driver.Object {
	var all []driver.Object
	if r := c.recordedObject(objects.KindClaim, c.Key.Name); r == nil && !c.spec.Ephemeral {
		all = append(all, objects.NewIntent(objects.KindClaim, c.Key.Name))
	}
	if c.spec.BlockEviction && c.recordedObject(objects.KindBudget, c.Key.Name) == nil {
		all = append(all, objects.NewIntent(objects.KindBudget, c.Key.Name))
	}
	if c.spec.Power == driver.PowerOff && !c.spec.Ephemeral || c.Pod != nil {
		return all
	}
	if !c.isPodIntended() {
		all = append(all, c.newPodIntents(ctx)...)
	}
	for _, v := range c.spec.Volumes {
		if name := objects.ClaimName(c.Key.Name, v.Name); c.recordedObject(objects.KindClaim, name) == nil {
			all = append(all, objects.NewIntent(objects.KindClaim, name))
		}
	}
	return all
}

// newPodIntents returns new records of the next pod, with the digests of its images, and of its Secret.
func (c *claims) newPodIntents(ctx context.Context) []driver.Object {
	pod := objects.NewIntent(objects.KindPod, c.Key.Name)
	pod.Images = c.resolveImages(ctx)
	return []driver.Object{pod, objects.NewIntent(objects.KindSecret, objects.SecretName(c.Key.Name, pod.Nonce))}
}

// isPodIntended reports whether the next pod and its Secret are recorded.
func (c *claims) isPodIntended() bool {
	r := c.recordedObject(objects.KindPod, c.Key.Name)
	return r != nil && !r.Ended && r.UID == "" && !c.isNonceUsed(r) && c.hasResolved(r) && c.recordedObject(objects.KindSecret, objects.SecretName(c.Key.Name, r.Nonce)) != nil
}
