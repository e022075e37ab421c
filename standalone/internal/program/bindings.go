// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// ListBindings returns the engines that VirtualMachines are bound to.
func ListBindings(ctx context.Context, reader client.Reader) (all []api.Binding, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := &api.VirtualMachineList{}
		return page, reader.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	})
	seen := map[api.Binding]bool{}
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		vm, ok := object.(*api.VirtualMachine)
		if !ok {
			return fmt.Errorf("the list of VirtualMachines has a %T", object)
		}
		bound := policy.BindingOf(vm)
		bound.UID = "" // all VirtualMachines of an engine count as one
		if bound.EngineID != "" && !seen[bound] {
			seen[bound] = true
			all = append(all, bound)
		}
		return nil
	})
	return all, err
}
