// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// MaxText is the length in bytes that the CRD allows for a text in a status.
const MaxText = 4096

// VM returns the facts of an object on which decisions may depend.
func VM(vm *api.VirtualMachine) policy.VM {
	size := resourcesOf(vm)
	return policy.VM{
		Namespace: vm.Namespace, Name: vm.Name, UID: vm.UID, Generation: vm.Generation,
		IsDeleted: vm.DeletionTimestamp != nil, Binding: policy.BindingOf(vm), IsBound: policy.IsBound(vm),
		Spec: policy.Spec{
			Action: vm.Spec.Action, Driver: vm.Spec.Driver, DeletionPolicy: vm.Spec.DeletionPolicy, RestartPolicy: vm.Spec.RestartPolicy,
			RestartedAt: timeOf(vm.Spec.RestartedAt), GracePeriodSeconds: int64(gracePeriodOf(vm).Seconds()),
			Size: policy.Size{CPUMilli: size.CPUMilli, MemoryBytes: size.MemoryBytes},
		},
		Status: Status(&vm.Status),
	}
}

// Status returns the facts of a status.
func Status(s *api.VirtualMachineStatus) policy.Status {
	facts := policy.Status{
		ObservedGeneration: s.ObservedGeneration, Server: serverStatusFacts(s.Server), PendingFields: policy.ListOf(s.PendingFields...),
		RestartedAt: timeOf(s.RestartedAt), StartTime: MicroTime(s.StartTime),
		Ready: meta.IsStatusConditionTrue(s.Conditions, api.ConditionReady),
	}
	if op := s.Operation; op != nil {
		facts.Operation = policy.Operation{
			Type: op.Type, Generation: op.Generation, Attempts: op.Attempts, NextRetryTime: MicroTime(op.NextRetryTime),
			Failure: op.Failure, Reason: op.Reason, LastError: Truncate(op.LastError), Run: op.Run,
			RestartedAt: timeOf(op.RestartedAt), Epoch: op.Epoch, Evicted: op.Evicted,
		}
	}
	if f := s.RefusedField; f != nil {
		facts.RefusedField = api.RefusedField{Field: f.Field, Reason: f.Reason, Message: Truncate(f.Message)}
	}
	return facts
}

func serverStatusFacts(s *api.ServerStatus) policy.ServerStatus {
	if s == nil {
		return policy.ServerStatus{}
	}
	return policy.ServerStatus{ID: s.ID, State: policy.State(s.State), StoppedRun: s.StoppedRun, Run: s.Run}
}

var answers = map[inventory.Answer]policy.Answer{inventory.Gone: policy.Gone, inventory.Present: policy.Present}

// Observed returns the facts of an answer of the inventory.
func Observed(o *inventory.Observation) policy.Observed {
	return policy.Observed{
		Answer: answers[o.Answer], Server: Server(&o.Server), Duplicates: policy.ListOf(o.Duplicates...), EngineID: o.EngineID,
		DownSince: o.DownSince, Cause: ErrorText(o.Cause), BackSince: o.BackSince, Fenced: o.Fenced, SettlesAt: o.SettlesAt,
	}
}

// Server returns the facts of a server.
func Server(s *driver.Server) policy.Server {
	facts := policy.Server{
		ID: s.ID, Run: s.Run, State: policy.State(s.State), Progress: Truncate(s.Progress), Note: Truncate(s.Note), Error: ErrorText(s.Err), ErrorReason: driver.ReasonOf(s.Err),
		StartedAt: s.StartedAt, Applied: policy.Size{CPUMilli: s.Applied.CPUMilli, MemoryBytes: s.Applied.MemoryBytes},
		NeedsEnsure: s.NeedsEnsure, HostLost: s.HostLost, Disruption: Truncate(s.Disruption),
		IsUnschedulable: s.IsUnschedulable, IsLeaving: s.IsLeaving, IsBooting: s.IsBooting,
	}
	if e := s.Exit; e != nil {
		facts.Exit = policy.Exit{
			HasEnded: true, Code: e.Code, Reason: e.Reason, Message: Truncate(e.Message), At: e.At,
			ByHost: e.ByHost(), NeverRan: e.NeverRan(), StartFailed: e.Reason == driver.ExitNotStarted, Evicted: e.Evicted,
		}
	}
	return facts
}

// IsAsReported reports whether the server is as the status says.
func IsAsReported(vm *api.VirtualMachine, observed inventory.Observation) bool {
	return policy.IsAsReported(serverStatusFacts(vm.Status.Server), Observed(&observed))
}

// ErrorText returns the text of an error, or "" for nil.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return Truncate(cmp.Or(err.Error(), "unknown error"))
}

func timeOf(t *metav1.Time) time.Time { return ptr.Deref(t, metav1.Time{}).Time }

// MicroTime returns the time, or the zero time for nil.
func MicroTime(t *metav1.MicroTime) time.Time { return ptr.Deref(t, metav1.MicroTime{}).Time }

// Truncate returns a text as valid UTF-8, cut to the length that the CRD allows. The result does not share
// memory with a longer text.
func Truncate(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText-len("...")], "") + "..."
}
