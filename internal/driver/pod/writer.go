// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// writer changes the objects of one server. Every change names the version that it was decided from, and
// leaves the epoch on the object.
type writer struct {
	server *instance.Instance
	client corev1client.CoreV1Interface
	epoch  uint64
}

// checkEpochs returns an error if a later leader has changed an object of the server.
func (w writer) checkEpochs() error {
	if w.server.Pod != nil {
		if err := objects.EnterEpoch(w.server.Pod.DeepCopy(), w.epoch); err != nil {
			return err
		}
	}
	if w.server.Claims.Root() != nil {
		return objects.EnterEpoch(w.server.Claims.Root().DeepCopy(), w.epoch)
	}
	return nil
}

// updateClaim changes a PVC in the version that was read.
func (w writer) updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim)) error {
	next := claim.DeepCopy()
	change(next)
	if err := objects.EnterEpoch(next, w.epoch); err != nil {
		return err
	}
	updated, err := w.client.PersistentVolumeClaims(claim.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		w.server.Note(updated)
		w.server.Claims.Replace(claim, updated)
	}
	return objects.Explain("change", objects.KindClaim, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, err)
}

// updatePod changes the pod in the version that was read.
func (w writer) updatePod(ctx context.Context, change func(*corev1.Pod)) error {
	next := w.server.Pod.DeepCopy()
	change(next)
	if err := objects.EnterEpoch(next, w.epoch); err != nil {
		return err
	}
	updated, err := w.client.Pods(w.server.Key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		w.server.Note(updated)
		w.server.Pod = updated
	}
	return objects.Explain("change", objects.KindPod, w.server.Key, err)
}

// maxTries is how often a call is tried while others change the objects.
const maxTries = 4

// retryConflicts repeats a call that fails because another client has changed the object, as the kubelet and
// volume provisioners do with new ones. Each call reads all objects and decides again. RetryOnConflict of
// client-go is not used, since it returns no error if a context has ended.
func retryConflicts(call func() error) error {
	for tries := 1; ; tries++ {
		if err := call(); !apierrors.IsConflict(err) || tries == maxTries {
			return err
		}
	}
}

// endPod asks the kubelet to end the pod within a grace period, and reads the objects again. The period is
// at least a second, unless an operator has asserted that no kubelet will answer. The epoch is written to
// the pod first, because a deletion carries none.
func (w writer) endPod(ctx context.Context, grace int64) error {
	if w.server.Pod.Annotations[objects.AnnotationEpoch] != strconv.FormatUint(w.epoch, 10) && w.epoch != 0 {
		if err := w.updatePod(ctx, func(*corev1.Pod) {}); err != nil {
			return err
		}
	}
	if w.server.AssertedEnd() == nil {
		grace = max(grace, objects.MinimalGrace)
	}
	if w.server.Pod.DeletionTimestamp != nil && w.server.Pod.DeletionGracePeriodSeconds != nil && *w.server.Pod.DeletionGracePeriodSeconds <= grace {
		return w.server.Read(ctx)
	}
	only := &metav1.Preconditions{UID: &w.server.Pod.UID} // a kubelet changes the version at any time
	if w.server.Pod.Spec.NodeName == "" {
		only.ResourceVersion = &w.server.Pod.ResourceVersion // another leader may remove the gate, and the scheduler bind it
	}
	w.server.IsDeletedHere = w.server.IsDeletedHere || w.server.Pod.DeletionTimestamp == nil
	err := w.client.Pods(w.server.Key.Namespace).Delete(ctx, w.server.Key.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: only})
	if objects.IgnoreNotFound(err) != nil {
		return objects.Explain("delete", objects.KindPod, w.server.Key, err)
	}
	return w.server.Read(ctx)
}

// annotatePod sets an annotation of the pod, or removes it if the value is empty.
func (w writer) annotatePod(ctx context.Context, key, value string) error {
	if w.server.Pod.Annotations[key] == value {
		return nil
	}
	return w.updatePod(ctx, func(p *corev1.Pod) {
		delete(p.Annotations, key)
		if value != "" {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		}
	})
}

// recordRefusal records on the pod whether an operator's assertion about it is refused.
func (w writer) recordRefusal(ctx context.Context) error {
	refuses, differs := w.server.RefusesAssertion()
	if !differs {
		return nil
	}
	return w.annotatePod(ctx, objects.AnnotationAssertionRefused, map[bool]string{true: "true"}[refuses])
}

// maxUsedNonces is how many nonces a PVC remembers: more than the records of leaders are behind.
const maxUsedNonces = 8

// recordEnd records on the PVC how the pod has ended, or that it never ran.
func (w writer) recordEnd(ctx context.Context) error {
	if w.server.Claims.Root() == nil || w.server.Claims.HasEnded(w.server.Pod.UID) {
		return nil
	}
	key, value := objects.AnnotationNeverRan, string(w.server.Pod.UID)
	if w.server.Claims.Root().Annotations[objects.AnnotationRun] == value {
		record, err := w.server.EndRecord()
		if err != nil {
			return err
		}
		key, value = objects.AnnotationEnd, record
	}
	return w.updateClaim(ctx, w.server.Claims.Root(), func(root *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, key, value)
		used := append(strings.Fields(root.Annotations[objects.AnnotationUsedNonces]), w.server.Pod.Annotations[objects.AnnotationNonce])
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, objects.AnnotationUsedNonces, strings.Join(used[max(len(used)-maxUsedNonces, 0):], " "))
	})
}

// forgetPod removes a pod that has ended, or has its scheduling gate, after its end is recorded. It checks
// the end again once the pod is being deleted, since no leader removes the gate then. The object remains
// until the kubelet has unmounted the volumes, and while others have finalizers on it.
func (w writer) forgetPod(ctx context.Context) error {
	if w.server.Pod.DeletionTimestamp == nil || w.server.AssertedEnd() != nil {
		if err := w.endPod(ctx, 0); err != nil || w.server.Pod == nil {
			return err
		}
	}
	if w.server.End() == nil {
		return driver.Errorf(driver.ErrRetry, "the pod %s may run, and has yet to end before it is removed", w.server.Key)
	}
	if err := w.recordEnd(ctx); err != nil {
		return err
	}
	err := w.updatePod(ctx, objects.RemoveFinalizer)
	if objects.IgnoreNotFound(err) != nil {
		return err
	}
	if grace := w.server.Pod.DeletionGracePeriodSeconds; err != nil || (grace == nil || *grace == 0) && !instance.IsHeld(w.server.Pod) {
		w.server.Pod = nil
	}
	return nil
}
