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
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Delete implements driver.Driver.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	ctx, end, err := d.calls.BeginChange(ctx, t.UID)
	if err != nil {
		return err
	}
	defer end()
	return retryConflicts(func() error { return d.deleteServer(ctx, t, retain) })
}

// deleteServer takes the next steps of a removal or a release, each from a live read.
func (d *Driver) deleteServer(ctx context.Context, t driver.Target, retain bool) error {
	found, err := d.reader.Find(ctx, t, retain)
	switch {
	case err != nil:
		return err
	case found.IsRetained():
		return driver.Errorf(driver.ErrNotFound, "the server of UID %s was released", t.UID)
	}
	w := writer{server: found, client: d.Client, epoch: t.Epoch}
	if err := w.checkEpochs(); err != nil {
		return err
	}
	if err := d.removeOrphanedBudget(ctx, found); err != nil {
		return err
	}
	if retain {
		return w.retainServer(ctx)
	}
	if err := w.recordRefusal(ctx); err != nil {
		return err
	}
	return w.removeServer(ctx)
}

// removeServer takes the next steps of a removal: the pod, then the disks. No disk is removed while a machine
// may use it.
func (w writer) removeServer(ctx context.Context) error {
	if w.server.Pod != nil && w.server.End() == nil {
		if err := w.endPod(ctx, objects.MinimalGrace); err != nil {
			return err
		}
	}
	switch {
	case w.server.Lost() != "":
		return objects.LostError(w.server.Lost())
	case w.server.Pod != nil && w.server.End() == nil:
		return nil // the kubelet will report
	case w.server.Pod != nil:
		if err := w.forgetPod(ctx); err != nil {
			return err
		}
	}
	for _, claim := range w.server.Claims.Volumes() {
		if err := w.deleteClaim(ctx, claim); err != nil {
			return err
		}
	}
	return w.deleteClaim(ctx, w.server.Claims.Root())
}

// deleteClaim deletes a PVC in the version that was read, unless it is nil or being deleted.
func (w writer) deleteClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim == nil || claim.DeletionTimestamp != nil {
		return nil
	}
	err := w.client.PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, objects.IfUnchanged(claim))
	return objects.Explain("delete", objects.KindClaim, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, objects.IgnoreNotFound(err))
}

// retainServer releases the server: objects that outlive the VirtualMachine have to lose it as their owner
// before it is gone, or the garbage collector would delete them. The object that IsRetained looks at is
// changed last, since a repeated call does nothing after that.
func (w writer) retainServer(ctx context.Context) error {
	mark := func(c *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataLabel(&c.ObjectMeta, objects.LabelRetained, "true")
	}
	for _, claim := range slices.Backward(w.server.Claims.Volumes()) {
		if err := w.updateClaim(ctx, claim, mark); err != nil {
			return err
		}
	}
	if w.server.Pod != nil {
		if err := w.updatePod(ctx, w.markReleased); err != nil {
			return err
		}
	}
	if w.server.Claims.Root() == nil {
		return nil
	}
	return w.updateClaim(ctx, w.server.Claims.Root(), mark)
}

// markReleased marks a pod as released. The PVC becomes its owner, since drain evicts only pods that have
// one.
func (w writer) markReleased(p *corev1.Pod) {
	metav1.SetMetaDataLabel(&p.ObjectMeta, objects.LabelRetained, "true")
	p.OwnerReferences = nil
	if w.server.Claims.Root() != nil {
		p.OwnerReferences = objects.ClaimOwner(w.server.Claims.Root())
		return
	}
	objects.SetLabels(p, nil)
}

// ReleaseEnded implements driver.EndedReleaser: it removes the finalizer from pods whose VirtualMachines
// are gone, once their end is proven. The informers tell which pods these may be, and each is then decided
// from a live read.
func (d *Driver) ReleaseEnded(ctx context.Context, gone ...types.UID) error {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	pods, err := d.reader.ListReleased(ctx, gone)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pods {
		errs = append(errs, retryConflicts(func() error { return d.releaseEnded(ctx, p, gone) }))
	}
	return errors.Join(errs...)
}

// releaseEnded removes the finalizer of one pod. The PVC of its root disk remains and records the end.
func (d *Driver) releaseEnded(ctx context.Context, known *corev1.Pod, gone []types.UID) error {
	if !d.isHeld(known, gone) {
		return nil
	}
	i, err := d.reader.ReadPod(ctx, known)
	if err != nil || i.End() == nil {
		return err
	}
	// The known pod may be out of date, and lacks fields.
	if err := i.Read(ctx); err != nil || i.Pod == nil || !d.isHeld(i.Pod, gone) || i.End() == nil {
		return err
	}
	w := writer{server: i, client: d.Client}
	if err := w.recordEnd(ctx); err != nil {
		return err
	}
	if err := w.updatePod(ctx, objects.RemoveFinalizer); err != nil {
		return objects.IgnoreNotFound(err)
	}
	d.Log.Info("Pod without a VirtualMachine has ended", "pod", i.Key)
	return nil
}

// isHeld reports whether a pod without a VirtualMachine has its finalizer: the pod was released, or its
// UID is gone. A pod whose VirtualMachine exists still belongs to that, whoever has labelled the pod.
func (d *Driver) isHeld(p *corev1.Pod, gone []types.UID) bool {
	uid := types.UID(p.Labels[objects.LabelUID])
	_, exists := d.reader.OwnerOf(uid)
	return !exists && (p.Labels[objects.LabelRetained] != "" || slices.Contains(gone, uid)) && slices.Contains(p.Finalizers, objects.FinalizerStopped)
}
