// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// pageSize is the page size of live lists, so that none loads all objects at once.
const pageSize = 500

// CachedOwners returns a function that reads the UIDs of all VirtualMachines.
func CachedOwners(reader client.Reader, options ...client.ListOption) inventory.Owners {
	return func(ctx context.Context) (map[types.UID]bool, error) {
		var vms api.VirtualMachineList
		if err := reader.List(ctx, &vms, options...); err != nil {
			return nil, err
		}
		uids := make(map[types.UID]bool, len(vms.Items))
		for n := range vms.Items {
			uids[vms.Items[n].UID] = true
		}
		return uids, nil
	}
}

// ownerIndex finds VirtualMachines in the cache by their UIDs.
const ownerIndex = "metadata.uid"

// IndexOwners makes the cache find VirtualMachines by their UID.
func IndexOwners(ctx context.Context, mgr ctrl.Manager) error {
	return mgr.GetFieldIndexer().IndexField(ctx, &api.VirtualMachine{}, ownerIndex, func(o client.Object) []string { return []string{string(o.GetUID())} })
}

// CachedVM returns a function that finds the VirtualMachine of a UID in the cache, nil while the
// cache is not filled. The object is not to be changed.
func CachedVM(ctx context.Context, reader client.Reader) func(types.UID) *api.VirtualMachine {
	return func(uid types.UID) *api.VirtualMachine {
		ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
		var vms api.VirtualMachineList
		if err := reader.List(ctx, &vms, client.MatchingFields{ownerIndex: string(uid)}, client.UnsafeDisableDeepCopy); err != nil || len(vms.Items) != 1 {
			return nil
		}
		return &vms.Items[0]
	}
}

// OwnerIn returns a function that tells what is known of the VirtualMachine with a UID.
func OwnerIn(find func(types.UID) *api.VirtualMachine) func(types.UID) (driver.Owner, bool) {
	return func(uid types.UID) (driver.Owner, bool) {
		if vm := find(uid); vm != nil {
			return driver.Owner{NamespacedName: client.ObjectKeyFromObject(vm), Labels: vm.Labels}, true
		}
		return driver.Owner{}, false
	}
}

// PodAssertedOffIn returns a function that tells which pod of a VirtualMachine an operator has
// asserted to be off.
func PodAssertedOffIn(find func(types.UID) *api.VirtualMachine) func(types.UID) types.UID {
	return func(uid types.UID) types.UID {
		if vm := find(uid); vm != nil {
			return types.UID(vm.Annotations[api.AnnotationMachineIsOff])
		}
		return ""
	}
}

// LiveOwners does the same from the API, as metadata and page by page.
func LiveOwners(reader client.Reader) inventory.Owners {
	return func(ctx context.Context) (map[types.UID]bool, error) {
		uids := map[types.UID]bool{}
		var page metav1.PartialObjectMetadataList
		page.SetGroupVersionKind(api.SchemeGroupVersion.WithKind("VirtualMachineList"))
		for {
			if err := reader.List(ctx, &page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
				return nil, err
			}
			for n := range page.Items {
				uids[page.Items[n].UID] = true
			}
			if page.Continue == "" {
				return uids, nil
			}
		}
	}
}

// ApprovedOrphans returns a function that reads the approvals. There are none for a controller
// that may not read them, because its RBAC was written by hand.
func ApprovedOrphans(reader client.Reader) func(context.Context) (map[driver.Target]bool, error) {
	return func(ctx context.Context) (map[driver.Target]bool, error) {
		var found corev1.ConfigMap
		err := reader.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: streams.OrphanApprovalsName}, &found)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return nil, nil //nolint:nilnil // Nil is for no approvals.
		}
		if err != nil {
			return nil, err
		}
		approved := make(map[driver.Target]bool, len(found.Data))
		for uid, id := range found.Data {
			approved[driver.Target{UID: types.UID(uid), ID: id}] = true
		}
		return approved, nil
	}
}

// errCacheNotFilled means that the cache does not have all objects yet.
var errCacheNotFilled = errors.New("the cache of VirtualMachines is not filled yet")

// vmInformer returns the informer that fills the cache with VirtualMachines.
func vmInformer(ctx context.Context, mgr ctrl.Manager) (cache.Informer, error) {
	return mgr.GetCache().GetInformer(ctx, &api.VirtualMachine{}, cache.BlockUntilSynced(false))
}

// WaitForCache waits until the cache has all VirtualMachines.
func WaitForCache(ctx context.Context, mgr ctrl.Manager) error {
	if _, err := vmInformer(ctx, mgr); err != nil {
		return err
	}
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return cmp.Or(context.Cause(ctx), errCacheNotFilled)
	}
	return nil
}

// CacheCheck returns a check that succeeds once the cache has all
// VirtualMachines.
func CacheCheck(mgr ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		informer, err := vmInformer(req.Context(), mgr)
		if err == nil && !informer.HasSynced() {
			err = errCacheNotFilled
		}
		return err
	}
}
