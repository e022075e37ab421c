// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// Reasons of errors, shown as status.reason.
const (
	reasonQuota       = "QuotaExceeded"
	reasonTerminating = "NamespaceTerminating"
	reasonForbidden   = "Forbidden"
	reasonRefused     = "ObjectRefused"
	reasonDeleting    = "VolumeDeleting"
	reasonVolumeLost  = "VolumeLost"
)

// Explain returns the error of a request about an object as an error of package driver. It keeps the
// text of the cluster, such as one about quotas, Pod Security or admission, since it says what to
// change.
func Explain(verb, kind string, key types.NamespacedName, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s %s %s: %w", verb, kind, key, err)
	switch {
	case isDriverError(err):
		return err
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return driver.WithReason(reasonTerminating, driver.Errorf(driver.ErrRetry, "%w", err))
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		return driver.WithReason(reasonQuota, driver.Errorf(driver.ErrExhausted, "%w", err))
	case apierrors.IsForbidden(err) && isOfLimitRange(err):
		return driver.WithReason(reasonRefused, driver.Errorf(driver.ErrExhausted, "%w", err))
	case apierrors.IsForbidden(err):
		return driver.WithReason(reasonForbidden, driver.Errorf(driver.ErrRetry, "%w", err))
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		// Policies, webhooks and LimitRanges refuse like that too, and may change without a new spec.
		return driver.WithReason(reasonRefused, driver.Errorf(driver.ErrExhausted, "%w", err))
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err), apierrors.IsTooManyRequests(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	case apierrors.ReasonForError(err) == "":
		return driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	return err
}

// isOfLimitRange reports whether a LimitRange has refused an object, which has nothing to do with rights.
// Admission plugin LimitRanger has no other mark than its words.
func isOfLimitRange(err error) bool {
	return strings.Contains(err.Error(), " usage per ") || strings.Contains(err.Error(), " limit to request ratio per ")
}

// TakenError returns the error of an object that cannot be created, because a foreign one has its name.
// That one may hold data, so the text does not advise to delete it unseen.
func TakenError(kind string, key types.NamespacedName) error {
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"a %s of the name %s exists and is not Drover's, which leaves it alone: look at what it holds, and remove it only if nobody needs that", kind, key))
}

// UnknownError returns the error of an object that is not the one in the status of its VirtualMachine. A
// deletion of the VirtualMachine would remove it by its labels.
func UnknownError(kind string, o metav1.Object) error {
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"%s with UID %s was not made for this VirtualMachine, whose status does not have it, so Drover does not use it: look at what it holds, and remove it only if nobody needs that; to keep it, remove its label %s before you delete the VirtualMachine",
		Describe(kind, o), o.GetUID(), LabelUID))
}

// LostClaimError returns the error of a PVC that is gone. another is the one that has its name now, or nil.
func LostClaimError(key types.NamespacedName, uid types.UID, disk Disk, another metav1.Object) error {
	text := "is gone, and no new disk is made in its place"
	switch {
	case another != nil && another.GetUID() == uid:
		text = fmt.Sprintf("is there, and somebody has changed its annotations: set %s to its nonce in status.objects, and %s to that UID", AnnotationNonce, AnnotationClaim)
	case another != nil:
		text += fmt.Sprintf("; the one with UID %s, such as one that was restored from a backup, is neither used nor deleted", another.GetUID())
	default:
		text += "; one that is restored from a backup is neither used nor deleted"
	}
	return driver.WithReason(reasonVolumeLost, driver.Errorf(driver.ErrRetry, "the PVC %s with UID %s, which has the %s, %s", key, uid, disk.Describe(), text))
}

// DeletedClaimError returns the error of a PVC that was deleted while a pod uses it.
func DeletedClaimError(claim *corev1.PersistentVolumeClaim) error {
	return driver.WithReason(reasonDeleting, driver.Errorf(driver.ErrRetry,
		"%s was deleted, and its data will be gone once the pod is: copy the data from the running guest, and delete the VirtualMachine; Drover does not restart it",
		Describe(KindClaim, claim)))
}

// ChangedError returns the error of a pod that something in the cluster has changed at its creation.
// fields are the fields of the spec that the pod lacks.
func ChangedError(pod types.NamespacedName, fields []string) error {
	return driver.WithReason(reasonRefused, driver.Errorf(driver.ErrExhausted,
		"something in the cluster, such as a webhook, has changed fields of the pod %s as it was created: %s; it has to leave them as they are", pod, strings.Join(fields, ", ")))
}

// isDriverError reports whether an error is one of package driver already.
func isDriverError(err error) bool {
	return errors.Is(err, driver.ErrRetry) || errors.Is(err, driver.ErrExhausted) || errors.Is(err, driver.ErrNotFound)
}

// IgnoreNotFound returns nil for the error of an object that does not exist, and other errors as they are.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// reasonPodLost is the reason of an error, shown as status.reason.
const reasonPodLost = "PodLost"

// LostError returns the error of a machine that is lost, nil if there is no cause.
func LostError(cause string) error {
	if cause == "" {
		return nil
	}
	return driver.WithReason(reasonPodLost, driver.Errorf(driver.ErrRetry,
		"%s: the machine may run still, so nothing else is done with it; see docs/cluster.md, \"A pod that is lost\"", cause))
}
