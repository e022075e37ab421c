// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// Priorities in a work queue.
const (
	PriorityDeletion = 20
	// PriorityUser is for changes by users.
	PriorityUser = 10
	// PriorityEngine is for changes of servers, and for steps in progress.
	PriorityEngine = 0
	// PriorityRoutine is for VirtualMachines that need nothing.
	PriorityRoutine = handler.LowPriority
)

// PriorityOf returns the priority of a VirtualMachine, which depends on the unfinished work that the
// object shows.
func PriorityOf(vm *api.VirtualMachine) int {
	switch {
	case vm.DeletionTimestamp != nil:
		return PriorityDeletion
	case vm.Status.ObservedGeneration != vm.Generation:
		return PriorityUser
	case vm.Status.Operation != nil:
		return PriorityEngine
	}
	return PriorityRoutine
}

// PriorityIndex is a cache index by priority. It leaves out VMs that need nothing, so that
// a new leader finds VMs with unfinished work without reading thousands of VMs.
const PriorityIndex = "priority"

// IndexPriority returns an object's entry in the PriorityIndex.
func IndexPriority(object client.Object) []string {
	vm, ok := object.(*api.VirtualMachine)
	if !ok || PriorityOf(vm) == PriorityRoutine {
		return nil
	}
	return []string{strconv.Itoa(PriorityOf(vm))}
}

// CreatePriority returns the priority of an object that is new to the cache.
func CreatePriority(e event.TypedCreateEvent[*api.VirtualMachine]) int {
	if e.IsInInitialList {
		return PriorityOf(e.Object)
	}
	return max(PriorityOf(e.Object), PriorityUser)
}

// UpdatePriority reports whether a change of the object must be reconciled, and at
// which priority.
func UpdatePriority(old, vm *api.VirtualMachine) (priority int, ok bool) {
	switch {
	case old.DeletionTimestamp == nil && vm.DeletionTimestamp != nil, old.UID != vm.UID:
		return PriorityDeletion, true
	case old.Generation != vm.Generation:
		return PriorityUser, true
	case vm.DeletionTimestamp != nil && old.Annotations[api.AnnotationBound] != vm.Annotations[api.AnnotationBound]:
		return PriorityDeletion, true // changed by hand, as DeletionBlocked requests
	case (policy.IsBound(old) || policy.LacksUID(policy.BindingOf(old))) && policy.BindingOf(old) != policy.BindingOf(vm):
		return PriorityUser, true
	case policy.IsBound(old) && !policy.IsBound(vm):
		return PriorityUser, vm.DeletionTimestamp == nil
	}
	return 0, false
}
