// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// The drivers whose servers are reached in a separate way.
const (
	// DriverPod is the driver whose servers are pods.
	DriverPod = "pod"
	// DriverQEMU is the driver whose servers are machines of a host.
	DriverQEMU = "qemu"
)

// PodPorts returns the ports at which a VM that is a pod answers now, each with its name; none for
// other VMs, and before the pod gets an address.
func PodPorts(vm *api.VirtualMachine) []api.Port {
	if DriverOf(vm) != DriverPod || len(vm.Status.Addresses) == 0 {
		return nil
	}
	return vm.Spec.Ports
}
