// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outage tests failures around Drover with real components: engines that
// stop and come back, controllers that are killed, servers without a VM, and
// several Drovers on one engine. Every test has a separate cluster.
package outage

import (
	"os"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, openDocker)) }

func openDocker() (func() error, error) {
	_, err := framework.OpenDockerClient()
	return func() error { return nil }, err
}

var drivers = []string{"docker", "fake"}

// newSmallVM returns a builder of a VM that needs few resources.
func newSmallVM(name, driver string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(driver).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(5)
}

// sameServer requires that a VM has the same server and number of restarts as before.
func sameServer(before *api.VirtualMachine) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(vm.Status.Server != nil && vm.Status.Server.ID == before.Status.Server.ID && vm.Status.RestartCount == before.Status.RestartCount,
			"server %+v, %d restarts: want server %s, %d restarts", vm.Status.Server, vm.Status.RestartCount, before.Status.Server.ID, before.Status.RestartCount)
	}
}
