// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// NoValue stands for a value that is not known or not there.
const NoValue = "-"

// StateCell returns the phase of a VM and how it looks.
func StateCell(vm *api.VirtualMachine) kit.Cell {
	phase := vm.Status.Phase
	if vm.DeletionTimestamp != nil {
		phase = api.PhaseTerminating
	}
	c := kit.Cell{Text: cmp.Or(string(phase), NoValue)}
	switch phase {
	case api.PhaseActive:
		if c.Style = kit.Yellow; IsReady(vm) {
			c.Style = kit.Green
		}
	case api.PhaseFailed, api.PhaseUnknown:
		c.Style = kit.Red
	case api.PhaseCreating, api.PhaseTerminating:
		c.Style = kit.Yellow
	case api.PhaseStopped, api.PhasePaused:
		if !IsReady(vm) {
			c.Style = kit.Yellow
		}
	}
	return c
}

// ConditionOf returns a condition, or an empty one.
func ConditionOf(vm *api.VirtualMachine, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(vm.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// IsReady reports whether the server is as the current spec says.
func IsReady(vm *api.VirtualMachine) bool {
	c := ConditionOf(vm, api.ConditionReady)
	return c.Status == metav1.ConditionTrue && IsObserved(vm)
}

// IsFailing reports whether the last try of an operation has failed.
func IsFailing(vm *api.VirtualMachine) bool {
	return vm.Status.Operation != nil && vm.Status.Operation.Attempts > 0 && !IsOnlyCounting(vm)
}

// IsOnlyCounting reports whether the server of a VM is on, and its operation just counts the starts before
// that, until the run has proven stable.
func IsOnlyCounting(vm *api.VirtualMachine) bool {
	op, phase := vm.Status.Operation, vm.Status.Phase
	return op != nil && op.Failure == api.FailureExited && (phase == api.PhaseActive || phase == api.PhasePaused)
}

// IsStalled reports whether only a new spec can help.
func IsStalled(vm *api.VirtualMachine) bool {
	return ConditionOf(vm, api.ConditionStalled).Status == metav1.ConditionTrue && IsObserved(vm)
}

// IsObserved reports whether the status is about the current spec. Lists leave out the
// generation, which is then 0.
func IsObserved(vm *api.VirtualMachine) bool { return vm.Status.ObservedGeneration >= vm.Generation }

// DriverOf returns the driver of a VM, or "" for one that no controller has seen.
func DriverOf(vm *api.VirtualMachine) string {
	if b := vm.Status.Binding; b != nil {
		return b.Driver
	}
	return cmp.Or(vm.Status.Driver, vm.Spec.Driver)
}

// ImageOf returns the image of a VM.
func ImageOf(vm *api.VirtualMachine) string {
	switch image := vm.Spec.Image; {
	case image == nil:
		return ""
	case image.Source == "" && image.Kernel != nil:
		return image.Kernel.Source
	default:
		return image.Source
	}
}

// AgeText returns how long ago an instant was, as kubectl prints it.
func AgeText(now, start time.Time) string {
	if start.IsZero() {
		return NoValue
	}
	return duration.HumanDuration(now.Sub(start))
}

// PortTexts returns the open ports of a VM, in the words of --port: those of the host, or those of a pod.
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

// PortText returns a port in the words of --port.
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

// QuantityText returns a quantity as people write it: 1000 CPUs are no "1k".
func QuantityText(name corev1.ResourceName, quantity resource.Quantity) string {
	if n, whole := quantity.AsInt64(); whole && name == api.ResourceCPU {
		return strconv.FormatInt(n, 10)
	}
	return quantity.String()
}
