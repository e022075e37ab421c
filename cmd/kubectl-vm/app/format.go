// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"fmt"
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
)

// none stands for a value that is not known or not there.
const none = "-"

// stateOf returns the phase of a VM and how it looks.
func stateOf(vm *api.VirtualMachine) cell {
	phase := vm.Status.Phase
	if vm.DeletionTimestamp != nil {
		phase = api.PhaseTerminating
	}
	c := cell{text: cmp.Or(string(phase), none)}
	switch phase {
	case api.PhaseActive:
		if c.style = yellow; isReady(vm) {
			c.style = green
		}
	case api.PhaseFailed, api.PhaseUnknown:
		c.style = red
	case api.PhaseCreating, api.PhaseTerminating:
		c.style = yellow
	case api.PhaseStopped, api.PhasePaused:
		if !isReady(vm) {
			c.style = yellow
		}
	}
	return c
}

// conditionOf returns a condition, or an empty one.
func conditionOf(vm *api.VirtualMachine, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(vm.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// isReady reports whether the server is as the current spec says.
func isReady(vm *api.VirtualMachine) bool {
	c := conditionOf(vm, api.ConditionReady)
	return c.Status == metav1.ConditionTrue && isObserved(vm)
}

// isFailing reports whether the last try of an operation has failed.
func isFailing(vm *api.VirtualMachine) bool {
	return vm.Status.Operation != nil && vm.Status.Operation.Attempts > 0 && !isOnlyCounting(vm)
}

// isOnlyCounting reports whether the server of a VM is on, and its operation just counts the starts before
// that, until the run has proven stable.
func isOnlyCounting(vm *api.VirtualMachine) bool {
	op, phase := vm.Status.Operation, vm.Status.Phase
	return op != nil && op.Failure == api.FailureExited && (phase == api.PhaseActive || phase == api.PhasePaused)
}

// isStalled reports whether only a new spec can help.
func isStalled(vm *api.VirtualMachine) bool {
	return conditionOf(vm, api.ConditionStalled).Status == metav1.ConditionTrue && isObserved(vm)
}

// isObserved reports whether the status is about the current spec. Lists leave out the
// generation, which is then 0.
func isObserved(vm *api.VirtualMachine) bool { return vm.Status.ObservedGeneration >= vm.Generation }

// driverOf returns the driver of a VM, or "" for one that no controller has seen.
func driverOf(vm *api.VirtualMachine) string {
	if b := vm.Status.Binding; b != nil {
		return b.Driver
	}
	return cmp.Or(vm.Status.Driver, vm.Spec.Driver)
}

// imageOf returns the image of a VM.
func imageOf(vm *api.VirtualMachine) string {
	switch image := vm.Spec.Image; {
	case image == nil:
		return ""
	case image.Source == "" && image.Kernel != nil:
		return image.Kernel.Source
	default:
		return image.Source
	}
}

// ageText returns how long ago an instant was, as kubectl prints it.
func ageText(now, start time.Time) string {
	if start.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(start))
}

// portsOf returns the open ports of a VM, in the words of --port: those of the host, or those of a pod.
func portsOf(vm *api.VirtualMachine) []string {
	all := make([]string, 0, len(vm.Status.Ports))
	for _, p := range vm.Status.Ports {
		all = append(all, portText(p.HostIP, p.HostPort, p.Port, p.Protocol))
	}
	for _, p := range podPorts(vm) {
		all = append(all, portText("", 0, p.Port, p.Protocol))
	}
	return all
}

// portText returns a port in the words of --port.
func portText(hostIP string, hostPort, port int32, protocol api.Protocol) string {
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

// joinSome joins the first texts, and counts the others.
func joinSome(texts []string, most int) string {
	if len(texts) == 0 {
		return none
	}
	if len(texts) <= most {
		return strings.Join(texts, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(texts[:most], ","), len(texts)-most)
}

// sizeText returns a quantity of spec.resource as the user wrote it.
func sizeText(vm *api.VirtualMachine, name corev1.ResourceName) string {
	quantity, ok := vm.Spec.Resource[name]
	if !ok {
		return none
	}
	return quantityText(name, quantity)
}

// quantityText returns a quantity as people write it: 1000 CPUs are no "1k".
func quantityText(name corev1.ResourceName, quantity resource.Quantity) string {
	if n, whole := quantity.AsInt64(); whole && name == api.ResourceCPU {
		return strconv.FormatInt(n, 10)
	}
	return quantity.String()
}

// bytesText returns a number of bytes with three digits, in the units of a quantity: 1.25G
// beside 4G, and 1.16Gi beside 4Gi.
func bytesText(bytes float64, like resource.Quantity) string {
	base, units := 1000.0, []string{"", "k", "M", "G", "T", "P"}
	if like.Format == resource.BinarySI {
		base, units = 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	}
	n := 0
	for ; bytes >= 999.5 && n < len(units)-1; n++ {
		bytes /= base
	}
	digits := 2
	for limit := 9.995; digits > 0 && bytes >= limit; limit *= 10 {
		digits--
	}
	if n == 0 {
		digits = 0
	}
	return strconv.FormatFloat(bytes, 'f', digits, 64) + units[n]
}

// usageOf returns how many CPUs and bytes a VM uses, and both in per cent of its size.
func usageOf(vm *api.VirtualMachine) (u usage, known bool) {
	if vm.Status.Server == nil || vm.Status.Server.Usage == nil {
		return usage{}, false
	}
	cpu, memory := vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory]
	sample := vm.Status.Server.Usage
	u = usage{cpus: sample.CPU / 100, cpuPercent: sample.CPU, bytes: sample.Memory / 100 * memory.AsApproximateFloat64(), memoryPercent: sample.Memory}
	if has := cpu.AsApproximateFloat64(); has > 0 {
		u.cpuPercent = sample.CPU / has
	}
	return u, true
}

// usage says how much a VM uses.
type usage struct{ cpus, cpuPercent, bytes, memoryPercent float64 }

// percentText returns a usage in per cent.
func percentText(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) + "%" }
