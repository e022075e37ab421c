// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// pageSize of live lists, so that none holds all objects at once.
const pageSize = 500

// owners reads the UIDs of all VirtualMachines.
func owners(reader client.Reader, options ...client.ListOption) inventory.Owners {
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

// liveOwners reads the same from the API, as metadata and page by page.
func liveOwners(reader client.Reader) inventory.Owners {
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

// cachesSynced is ready once the API cache is.
func cachesSynced(mgr ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		if !mgr.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("the cache of VirtualMachines is not synced yet")
		}
		return nil
	}
}

func isRegistered(err error) bool {
	return errors.As(err, &prometheus.AlreadyRegisteredError{})
}
