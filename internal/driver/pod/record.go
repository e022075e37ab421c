// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// records are the objects that the status has recorded of a server, for one call of Ensure.
type records struct{ *call }

// find returns the record of an object, nil if there is none.
func (r records) find(kind, name string) *driver.Object {
	return objects.FindRecorded(r.spec.Objects, kind, name)
}

// check refuses an object that was not made for the VirtualMachine. Its UID has to be the recorded
// one, or its nonce that of an intent whose UID is not recorded yet.
func (r records) check(kind string, o metav1.Object) error {
	recorded := r.find(kind, o.GetName())
	switch {
	case recorded != nil && recorded.UID == o.GetUID():
		return nil
	case recorded != nil && recorded.UID == "" && recorded.Nonce != "" && recorded.Nonce == o.GetAnnotations()[objects.AnnotationNonce] && !r.isNonceUsed(recorded):
		return nil
	}
	return objects.UnknownError(kind, o)
}

// restoreLabels puts the labels back on the pod and the PVCs that others have taken them from. The status of
// the VirtualMachine proves which ones these are. It is done before anything else, because the PVC of the
// root disk records what becomes of the pod.
func (c *convergence) restoreLabels(ctx context.Context) error {
	for _, o := range c.server.Unlabelled {
		var err error
		switch o := o.(type) {
		case *corev1.Pod:
			if c.records.check(objects.KindPod, o) == nil {
				c.server.Pod = o
				err = c.writer.updatePod(ctx, func(p *corev1.Pod) { c.driver.Objects.SetOwnLabels(p, c.spec) })
			}
		case *corev1.PersistentVolumeClaim:
			if !objects.IsForeignClaim(o) && c.records.check(objects.KindClaim, o) == nil {
				err = c.claims.restoreClaim(ctx, o)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreClaim puts the labels back on a PVC of the server.
func (c claims) restoreClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	for _, disk := range objects.DisksOf(c.spec) {
		if objects.ClaimName(c.server.Key.Name, disk.Name) != claim.Name {
			continue
		}
		c.server.Claims[disk.Name] = claim
		return c.writer.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) { c.driver.Objects.SetClaimLabels(claim, c.spec, disk.Name) })
	}
	return nil
}

// isNonceUsed reports whether the pod with a recorded nonce was created and removed. The record is
// outdated then: another leader may have recorded the next pod since.
func (r records) isNonceUsed(o *driver.Object) bool {
	return o.Kind == objects.KindPod && r.server.Claims.Root() != nil && slices.Contains(strings.Fields(r.server.Claims.Root().Annotations[objects.AnnotationUsedNonces]), o.Nonce)
}

// newIntents returns new records, with nonces, of the objects that the next steps create.
func (r records) newIntents(ctx context.Context) []driver.Object {
	var all []driver.Object
	if found := r.find(objects.KindClaim, r.server.Key.Name); found == nil && !r.spec.Ephemeral {
		all = append(all, objects.NewIntent(objects.KindClaim, r.server.Key.Name))
	}
	if r.spec.BlockEviction && r.find(objects.KindBudget, r.server.Key.Name) == nil {
		all = append(all, objects.NewIntent(objects.KindBudget, r.server.Key.Name))
	}
	if r.spec.Power == driver.PowerOff && !r.spec.Ephemeral || r.server.Pod != nil {
		return all
	}
	if !r.isPodIntended() {
		all = append(all, r.newPodIntents(ctx)...)
	}
	for _, v := range r.spec.Volumes {
		if name := objects.ClaimName(r.server.Key.Name, v.Name); r.find(objects.KindClaim, name) == nil {
			all = append(all, objects.NewIntent(objects.KindClaim, name))
		}
	}
	return all
}

// newPodIntents returns new records of the next pod, with the digests of its images, and of its Secret.
func (r records) newPodIntents(ctx context.Context) []driver.Object {
	pod := objects.NewIntent(objects.KindPod, r.server.Key.Name)
	pod.Images = r.resolveImages(ctx)
	return []driver.Object{pod, objects.NewIntent(objects.KindSecret, objects.SecretName(r.server.Key.Name, pod.Nonce))}
}

// isPodIntended reports whether the next pod and its Secret are recorded.
func (r records) isPodIntended() bool {
	found := r.find(objects.KindPod, r.server.Key.Name)
	return found != nil && !found.Ended && found.UID == "" && !r.isNonceUsed(found) && r.hasResolved(found) && r.find(objects.KindSecret, objects.SecretName(r.server.Key.Name, found.Nonce)) != nil
}

// claimUID returns the UID of the PVC of a record, "" if there is none.
func (r records) claimUID(o driver.Object) types.UID {
	for _, of := range objects.DisksOf(r.spec) {
		if claim := r.server.Claims[of.Name]; claim != nil && claim.Name == o.Name && claim.Annotations[objects.AnnotationNonce] == o.Nonce {
			return claim.UID
		}
	}
	return ""
}

// recordClaims makes the caller record the UIDs of PVCs before it reports a failure: without them, an
// empty disk could replace one that is gone.
func (r records) recordClaims(failure error) error {
	if _, ok := errors.AsType[*driver.RecordFirstError](failure); ok || apierrors.IsConflict(failure) || driver.MayNotAct(failure) {
		return failure
	}
	var found []driver.Object
	for _, o := range r.spec.Objects {
		if uid := r.claimUID(o); o.Kind == objects.KindClaim && uid != "" && uid != o.UID {
			o.UID = uid
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return failure
	}
	return objects.RecordFirst(r.spec.Objects, failure, found...)
}
