// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"net"
	"strconv"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// knownDrivers are the drivers of this version. A cluster may have others.
var knownDrivers = []string{"docker", "qemu", "pod", "fake"}

// driverPod is the driver whose servers are pods, and driverQEMU the one whose servers are machines of a host.
const driverPod, driverQEMU = "pod", "qemu"

// podPorts returns the ports at which a VM that is a pod answers now, each with its name; none for
// other VMs, and before the pod gets an address.
func podPorts(vm *api.VirtualMachine) []api.Port {
	if driverOf(vm) != driverPod || len(vm.Status.Addresses) == 0 {
		return nil
	}
	return vm.Spec.Ports
}

// podPortText returns a port of a pod with the pod's address.
func podPortText(vm *api.VirtualMachine, p api.Port) string {
	text := net.JoinHostPort(vm.Status.Addresses[0], strconv.Itoa(int(p.Port)))
	if p.Protocol == api.ProtocolUDP {
		text += "/udp"
	}
	return text
}
