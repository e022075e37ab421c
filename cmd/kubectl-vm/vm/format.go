// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NoValue stands for a value that is unknown or missing.
const NoValue = "-"

// AgeText returns how long ago an instant was, as kubectl prints it.
func AgeText(now, start time.Time) string {
	if start.IsZero() {
		return NoValue
	}
	return duration.HumanDuration(now.Sub(start))
}

// PortTexts returns the open ports of a VM on the host or of its pod, in the format of --port.
func PortTexts(vm *api.VirtualMachine) []string {
	all := make([]string, 0, len(vm.Status.Ports))
	for _, p := range vm.Status.Ports {
		all = append(all, PortText(p.HostIP, p.HostPort, p.Port, p.Protocol))
	}
	for _, p := range PodPorts(vm) {
		all = append(all, PortText("", 0, p.Port, p.Protocol))
	}
	return all
}

// PortText returns a port in the format of --port.
func PortText(hostIP string, hostPort, port int32, protocol api.Protocol) string {
	text := strconv.Itoa(int(port))
	if hostPort != 0 || hostIP != "" {
		host := ""
		if hostPort != 0 {
			host = strconv.Itoa(int(hostPort))
		}
		text = host + ":" + text
		if hostIP != "" {
			text = strings.TrimSuffix(net.JoinHostPort(hostIP, ""), ":") + ":" + text
		}
	}
	if protocol == api.ProtocolUDP {
		text += "/udp"
	}
	return text
}

// SizeText returns a quantity of spec.resource as the user wrote it.
func SizeText(vm *api.VirtualMachine, name corev1.ResourceName) string {
	quantity, ok := vm.Spec.Resource[name]
	if !ok {
		return NoValue
	}
	return QuantityText(name, quantity)
}

// QuantityText returns a quantity as people write it: 1000 CPUs, and not "1k".
func QuantityText(name corev1.ResourceName, quantity resource.Quantity) string {
	if n, whole := quantity.AsInt64(); whole && name == api.ResourceCPU {
		return strconv.FormatInt(n, 10)
	}
	return quantity.String()
}
