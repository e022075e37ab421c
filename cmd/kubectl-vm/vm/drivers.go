// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

const (
	// DriverPod is the driver whose servers are pods.
	DriverPod = "pod"
	// DriverQEMU is the driver whose servers are machines on a host.
	DriverQEMU = "qemu"
)

// PodPorts returns the ports of a VM that is a pod, once the pod has an address. It returns nil for
// other VMs.
func PodPorts(vm *api.VirtualMachine) []api.Port {
	if DriverOf(vm) != DriverPod || len(vm.Status.Addresses) == 0 {
		return nil
	}
	return vm.Spec.Ports
}
