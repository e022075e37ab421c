// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// Delete implements driver.Driver.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if err := driver.CheckUID(t.UID); err != nil {
		return err
	}
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	unlock, err := d.lockServer(ctx, t.UID)
	if err != nil {
		return err
	}
	defer unlock()

	i, err := d.find(ctx, t)
	switch {
	case err != nil:
		return err
	case i.isRetained():
		return driver.Errorf(driver.ErrNotFound, "the server of UID %s was released", t.UID)
	}
	if err := i.fence(t.Epoch); err != nil {
		return err
	}
	if retain {
		return i.retain(ctx, t.Epoch)
	}
	return i.remove(ctx, t.Epoch)
}

// remove takes the next steps of a removal: the pod, then what holds data. Nothing that holds data
// goes while a machine may use it.
func (i *instance) remove(ctx context.Context, epoch uint64) error {
	if i.pod != nil && i.end() == nil {
		if err := i.deletePod(ctx, epoch, minimalGrace); err != nil {
			return err
		}
		if err := i.read(ctx); err != nil {
			return err
		}
	}
	switch {
	case i.pod != nil && i.end() == nil:
		return nil // the kubelet will report
	case i.pod != nil:
		if err := i.forgetPod(ctx, epoch); err != nil {
			return err
		}
	case i.isLost():
		return lostError(i.key)
	}
	for _, claim := range i.sortedVolumes() {
		if err := i.deleteClaim(ctx, claim); err != nil {
			return err
		}
	}
	return i.deleteClaim(ctx, i.root)
}

func (i *instance) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	claims := i.driver.Client.PersistentVolumeClaims(claim.Namespace)
	_, err := update(ctx, claims.Get, claim, isSame, func(read *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
		return read, claims.Delete(ctx, read.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &read.UID, ResourceVersion: &read.ResourceVersion},
		})
	})
	return explain("delete", kindClaim, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, ignoreNotFound(err))
}

// retain releases the server: what survives its VirtualMachine has to lose its owner before that is
// gone, or the garbage collector would end it.
func (i *instance) retain(ctx context.Context, epoch uint64) error {
	if i.pod != nil {
		if err := i.updatePod(ctx, epoch, i.release); err != nil {
			return err
		}
	}
	mark := func(c *corev1.PersistentVolumeClaim) { metav1.SetMetaDataLabel(&c.ObjectMeta, LabelRetained, "true") }
	for _, claim := range i.sortedVolumes() {
		if _, err := i.updateClaim(ctx, epoch, claim, mark); err != nil {
			return err
		}
	}
	if i.root == nil {
		return nil
	}
	return i.updateRoot(ctx, epoch, mark)
}

// release marks a pod as released. Its PVC becomes its owner, since drain evicts only pods with one.
func (i *instance) release(p *corev1.Pod) {
	metav1.SetMetaDataLabel(&p.ObjectMeta, LabelRetained, "true")
	p.OwnerReferences = nil
	if i.root != nil {
		p.OwnerReferences = []metav1.OwnerReference{claimReference(i.root)}
	}
}

func claimReference(claim *corev1.PersistentVolumeClaim) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: "v1", Kind: kindClaim, Name: claim.Name, UID: claim.UID, Controller: new(true), BlockOwnerDeletion: new(false),
	}
}

// ReleaseEnded implements driver.RetainedReleaser: it lets pods go whose VirtualMachines are gone,
// once their end is proven.
func (d *Driver) ReleaseEnded(ctx context.Context) error {
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	pods, err := d.Client.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: d.selector() + "," + LabelRetained, ResourceVersion: "0"})
	if err != nil {
		return explain("list", kindPod, types.NamespacedName{}, err)
	}
	var errs []error
	for n := range pods.Items {
		errs = append(errs, d.releaseEnded(ctx, &pods.Items[n]))
	}
	return errors.Join(errs...)
}

// releaseEnded lets a released pod go. One whose VirtualMachine exists still belongs to it, whoever
// has labelled the pod.
func (d *Driver) releaseEnded(ctx context.Context, p *corev1.Pod) error {
	uid := types.UID(p.Labels[LabelUID])
	if _, exists := d.ownerOf(uid); exists || !slices.Contains(p.Finalizers, FinalizerStopped) {
		return nil
	}
	i := &instance{driver: d, key: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, uid: uid, pod: p}
	if err := i.readNode(ctx); err != nil || i.end() == nil {
		return err
	}
	if err := i.removeFinalizer(ctx, 0); err != nil && !isGone(err) {
		return err
	}
	d.Log.Info("Released pod has ended", "pod", i.key)
	return nil
}
