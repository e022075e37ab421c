// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/vmtest"
)

func parseQuantity(text string) resource.Quantity { return resource.MustParse(text) }

// newSmallVM is a VM that a test's machine can have many of.
func newSmallVM(name, ns, driver string) *vmtest.Builder {
	return vmtest.VM(name).Namespace(ns).Driver(driver).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").Grace(5)
}
