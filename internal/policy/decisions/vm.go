// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// maxBinding is how much of the annotation of the binding is kept. A longer one is no binding,
// and cut it is none either.
const maxBinding = 256

// VM has the fields of a VirtualMachine that decide where a decision leads.
type VM struct {
	Namespace  string              `json:"namespace"`
	Name       string              `json:"name"`
	UID        types.UID           `json:"uid"`
	Generation int64               `json:"generation"`
	DeletedAt  Optional[time.Time] `json:"deletionTimestamp,omitzero"`
	// Bound is the annotation of the binding.
	Bound     string `json:"bound,omitzero"`
	Finalizer bool   `json:"finalizer"`
	Spec      Spec   `json:"spec"`
	Status    Status `json:"status"`
}

// Spec has fields of a VirtualMachine's spec.
type Spec struct {
	Action         api.Action          `json:"action,omitzero"`
	Driver         string              `json:"driver,omitzero"`
	DeletionPolicy api.DeletionPolicy  `json:"deletionPolicy,omitzero"`
	RestartPolicy  api.RestartPolicy   `json:"restartPolicy,omitzero"`
	RestartedAt    Optional[time.Time] `json:"restartedAt,omitzero"`
	GracePeriod    Optional[int64]     `json:"shutdownGracePeriodSeconds,omitzero"`
	CPUMilli       int64               `json:"cpuMilli"`
	MemoryBytes    int64               `json:"memoryBytes"`
	RootDiskBytes  int64               `json:"rootDiskBytes,omitzero"`
}

// Status has fields of a VirtualMachine's status.
type Status struct {
	ObservedGeneration int64                      `json:"observedGeneration,omitzero"`
	Driver             string                     `json:"driver,omitzero"`
	Binding            Optional[api.Binding]      `json:"binding,omitzero"`
	Server             Optional[ServerStatus]     `json:"server,omitzero"`
	Operation          Optional[Operation]        `json:"operation,omitzero"`
	PendingFields      List                       `json:"pendingFields,omitzero"`
	RefusedField       Optional[api.RefusedField] `json:"refusedField,omitzero"`
	RestartedAt        Optional[time.Time]        `json:"restartedAt,omitzero"`
	StartTime          Optional[time.Time]        `json:"startTime,omitzero"`
	// Ready is set if condition Ready is true.
	Ready bool `json:"ready,omitzero"`
}

// ServerStatus has fields of status.server.
type ServerStatus struct {
	ID         string `json:"id,omitzero"`
	State      string `json:"state,omitzero"`
	StoppedRun string `json:"stoppedRun,omitzero"`
	Run        string `json:"run,omitzero"`
}

// Operation has fields of status.operation.
type Operation struct {
	Type        api.OperationType    `json:"type"`
	Generation  int64                `json:"generation,omitzero"`
	Attempts    int32                `json:"attempts,omitzero"`
	NextRetry   Optional[time.Time]  `json:"nextRetryTime,omitzero"`
	Failure     api.OperationFailure `json:"failure,omitzero"`
	Reason      string               `json:"reason,omitzero"`
	LastError   string               `json:"lastError,omitzero"`
	Run         string               `json:"run,omitzero"`
	RestartedAt Optional[time.Time]  `json:"restartedAt,omitzero"`
	Epoch       int64                `json:"epoch,omitzero"`
}

func (b clockBase) time(t metav1.Time) time.Time       { return b.at(t.Time) }
func (b clockBase) micro(t metav1.MicroTime) time.Time { return b.at(t.Time) }

func (b clockBase) vm(vm *api.VirtualMachine) VM {
	size := policy.ResourcesOf(vm)
	return VM{
		Namespace: vm.Namespace, Name: vm.Name, UID: vm.UID, Generation: vm.Generation,
		DeletedAt: optional(vm.DeletionTimestamp, b.time),
		Bound:     cut(vm.Annotations[api.AnnotationBound], maxBinding),
		Finalizer: slices.Contains(vm.Finalizers, api.FinalizerServer),
		Spec: Spec{
			Action: vm.Spec.Action, Driver: vm.Spec.Driver, DeletionPolicy: vm.Spec.DeletionPolicy, RestartPolicy: vm.Spec.RestartPolicy,
			RestartedAt: optional(vm.Spec.RestartedAt, b.time), GracePeriod: optional(vm.Spec.ShutdownGracePeriodSeconds, same),
			CPUMilli: size.CPUMilli, MemoryBytes: size.MemoryBytes, RootDiskBytes: size.RootDiskBytes,
		},
		Status: b.status(&vm.Status),
	}
}

func (b clockBase) status(s *api.VirtualMachineStatus) Status {
	return Status{
		ObservedGeneration: s.ObservedGeneration, Driver: s.Driver, Binding: optional(s.Binding, same),
		Server: optional(s.Server, func(s api.ServerStatus) ServerStatus {
			return ServerStatus{ID: s.ID, State: s.State, StoppedRun: s.StoppedRun, Run: s.Run}
		}),
		Operation: optional(s.Operation, b.operation), PendingFields: listOf(s.PendingFields),
		RefusedField: optional(s.RefusedField, func(f api.RefusedField) api.RefusedField {
			return api.RefusedField{Field: f.Field, Reason: f.Reason, Message: cutInput(f.Message)}
		}),
		RestartedAt: optional(s.RestartedAt, b.time), StartTime: optional(s.StartTime, b.micro),
		Ready: meta.IsStatusConditionTrue(s.Conditions, api.ConditionReady),
	}
}

func (b clockBase) operation(op api.Operation) Operation {
	return Operation{
		Type: op.Type, Generation: op.Generation, Attempts: op.Attempts, NextRetry: optional(op.NextRetryTime, b.micro),
		Failure: op.Failure, Reason: op.Reason, LastError: cutInput(op.LastError), Run: op.Run,
		RestartedAt: optional(op.RestartedAt, b.time), Epoch: op.Epoch,
	}
}

// object returns a VirtualMachine with what was recorded of it.
func (v *VM) object() *api.VirtualMachine {
	vm := &api.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.Namespace, Name: v.Name, UID: v.UID, Generation: v.Generation,
			DeletionTimestamp: pointer(v.DeletedAt, metav1.NewTime),
		},
		Spec: api.VirtualMachineSpec{
			Action: v.Spec.Action, Driver: v.Spec.Driver, DeletionPolicy: v.Spec.DeletionPolicy, RestartPolicy: v.Spec.RestartPolicy,
			RestartedAt: pointer(v.Spec.RestartedAt, metav1.NewTime), ShutdownGracePeriodSeconds: pointer(v.Spec.GracePeriod, same),
			Resource: corev1.ResourceList{
				api.ResourceCPU:      *resource.NewMilliQuantity(v.Spec.CPUMilli, resource.DecimalSI),
				api.ResourceMemory:   *resource.NewQuantity(v.Spec.MemoryBytes, resource.DecimalSI),
				api.ResourceRootDisk: *resource.NewQuantity(v.Spec.RootDiskBytes, resource.DecimalSI),
			},
		},
		Status: v.Status.object(),
	}
	if v.Bound != "" {
		vm.Annotations = map[string]string{api.AnnotationBound: v.Bound}
	}
	if v.Finalizer {
		vm.Finalizers = []string{api.FinalizerServer}
	}
	return vm
}

func (s *Status) object() api.VirtualMachineStatus {
	status := api.VirtualMachineStatus{
		ObservedGeneration: s.ObservedGeneration, Driver: s.Driver, Binding: pointer(s.Binding, same),
		Server: pointer(s.Server, func(s ServerStatus) api.ServerStatus {
			return api.ServerStatus{ID: s.ID, State: s.State, StoppedRun: s.StoppedRun, Run: s.Run}
		}),
		Operation: pointer(s.Operation, Operation.object), PendingFields: s.PendingFields.Names(),
		RefusedField: pointer(s.RefusedField, same), RestartedAt: pointer(s.RestartedAt, metav1.NewTime),
		StartTime: pointer(s.StartTime, metav1.NewMicroTime),
	}
	if s.Ready {
		status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue}}
	}
	return status
}

func (op Operation) object() api.Operation {
	return api.Operation{
		Type: op.Type, Generation: op.Generation, Attempts: op.Attempts, NextRetryTime: pointer(op.NextRetry, metav1.NewMicroTime),
		Failure: op.Failure, Reason: op.Reason, LastError: op.LastError, Run: op.Run,
		RestartedAt: pointer(op.RestartedAt, metav1.NewTime), Epoch: op.Epoch,
	}
}
