// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// StateCell returns the phase of a VM with its color.
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
	return vm.Status.Operation != nil && vm.Status.Operation.Attempts > 0 && !OnlyCountsRestarts(vm)
}

// OnlyCountsRestarts reports whether the server of a VM is on, and the operation remains in the status only to
// count the starts before the present run. Once this run is stable, the operation is removed.
func OnlyCountsRestarts(vm *api.VirtualMachine) bool {
	op, phase := vm.Status.Operation, vm.Status.Phase
	return op != nil && op.Failure == api.FailureExited && (phase == api.PhaseActive || phase == api.PhasePaused)
}

// IsStalled reports whether the VM can get ready only by a new spec.
func IsStalled(vm *api.VirtualMachine) bool {
	return ConditionOf(vm, api.ConditionStalled).Status == metav1.ConditionTrue && IsObserved(vm)
}

// IsObserved reports whether the status is about the current spec.
func IsObserved(vm *api.VirtualMachine) bool { return vm.Status.ObservedGeneration >= vm.Generation }

// DriverOf returns the driver of a VM, or "" if no controller has seen the VM and its spec does not name a driver.
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
