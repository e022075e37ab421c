// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// needsUpdate reports whether the spec must be passed to the driver: there is a change, or
// the driver asks for it.
func needsUpdate(in Input) bool { return in.Observed.Server.NeedsEnsure || hasChange(in) }

// hasChange reports whether this generation of the spec was not passed to the driver yet,
// or the server differs from it.
func hasChange(in Input) bool {
	if in.VM.Generation != in.PassedGeneration {
		return true
	}
	if len(pendingFields(in)) > 0 {
		return in.Done == "" && HasRestarted(&in.VM.Status, in.Observed.Server)
	}
	return hasDrifted(in.VM, in.Observed.Server.Applied)
}

// pendingFields returns the fields that wait for a restart, as Ensure last
// reported.
func pendingFields(in Input) []string {
	if in.Observed.Answer == inventory.Gone {
		return nil
	}
	return in.VM.Status.PendingFields
}

// PendingText says that fields wait for a restart, which nothing starts while the server is to
// be paused.
func PendingText(vm *api.VirtualMachine, fields []string) string {
	how := "change spec.restartedAt to restart now"
	if vm.Spec.Action == api.ActionPaused {
		how = "set spec.action to active first, then change spec.restartedAt"
	}
	return strings.Join(fields, ", ") + ": applied at the next restart (" + how + ")"
}

// refusedField returns the field that the server cannot have, as Ensure last
// reported.
func refusedField(in Input) *api.RefusedField {
	if in.Observed.Answer == inventory.Gone {
		return nil
	}
	return in.VM.Status.RefusedField
}

// HasRestarted reports whether the server was started since the status recorded a
// start.
func HasRestarted(status *api.VirtualMachineStatus, server driver.Server) bool {
	return status.StartTime != nil && !server.StartedAt.IsZero() && !status.StartTime.Time.Equal(server.StartedAt.Truncate(time.Microsecond))
}

// hasDrifted reports whether the server's size was changed outside of Drover.
func hasDrifted(vm *api.VirtualMachine, have driver.Resources) bool {
	want := ResourcesOf(vm)
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}

// ResourcesOf returns spec.resource in the driver's units.
func ResourcesOf(vm *api.VirtualMachine) driver.Resources {
	r := vm.Spec.Resource
	cpu, memory, disk := r[api.ResourceCPU], r[api.ResourceMemory], r[api.ResourceRootDisk]
	return driver.Resources{CPUMilli: cpu.MilliValue(), MemoryBytes: memory.Value(), RootDiskBytes: disk.Value()}
}
