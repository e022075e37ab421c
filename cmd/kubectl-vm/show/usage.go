// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// bytesText returns a number of bytes with three digits. It uses the kind of units of a quantity, so
// that 1.25G stands beside 4G, and 1.16Gi beside 4Gi.
func bytesText(bytes float64, units resource.Quantity) string {
	base, names := 1000.0, []string{"", "k", "M", "G", "T", "P"}
	if units.Format == resource.BinarySI {
		base, names = 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	}
	n := 0
	for ; bytes >= 999.5 && n < len(names)-1; n++ {
		bytes /= base
	}
	digits := 2
	for limit := 9.995; digits > 0 && bytes >= limit; limit *= 10 {
		digits--
	}
	if n == 0 {
		digits = 0
	}
	return strconv.FormatFloat(bytes, 'f', digits, 64) + names[n]
}

// usageOf returns how many CPUs and bytes a VM uses, and both in per cent of its size.
func usageOf(vm *api.VirtualMachine) (u usage, known bool) {
	if vm.Status.Server == nil || vm.Status.Server.Usage == nil {
		return usage{}, false
	}
	cpu, memory := vm.Spec.Resource[api.ResourceCPU], vm.Spec.Resource[api.ResourceMemory]
	sample := vm.Status.Server.Usage
	u = usage{cpus: sample.CPU / 100, cpuPercent: sample.CPU, bytes: sample.Memory / 100 * memory.AsApproximateFloat64(), memoryPercent: sample.Memory}
	if cpus := cpu.AsApproximateFloat64(); cpus > 0 {
		u.cpuPercent = sample.CPU / cpus
	}
	return u, true
}

// usage says how much a VM uses.
type usage struct{ cpus, cpuPercent, bytes, memoryPercent float64 }

// percentText formats a percentage.
func percentText(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) + "%" }
