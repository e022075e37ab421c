// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

// newSmallVM returns a builder of a VM that needs few resources.
func newSmallVM(name, ns, driver string) *framework.VMBuilder {
	return framework.NewVM(name).Namespace(ns).Driver(driver).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(5)
}
