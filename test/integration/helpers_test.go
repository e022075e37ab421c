// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

// newSmallVM is a VM that a test's machine can have many of.
func newSmallVM(name, ns, driver string) *framework.VMBuilder {
	return framework.NewVM(name).Namespace(ns).Driver(driver).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(5)
}
