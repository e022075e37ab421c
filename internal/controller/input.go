// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// input returns what the next decision is made from, and what is recorded of it: facts of the
// object and its server that are named here, and no others. The readiness probe of a server that
// the last step started begins here.
func (r *Reconciler) input(known facts) policy.Input {
	now := r.Clock.Now()
	probe := r.probes.Check(known.base, known.observed.Observation)
	probe.Message = truncate(probe.Message)
	return policy.Input{
		Now: now, VM: vmFacts(known.vm), Observed: observedFacts(&known.observed.Observation),
		Driver: r.Driver, Drivers: policy.ListOf(r.Drivers...), Epoch: r.leaderEpoch(),
		Done: known.operation, PassedGeneration: known.passedGeneration, Probe: probe,
		Since: r.times.update(known.vm, known.observed.Observation, now), DeletionBlocker: truncate(known.deletionBlocker),
	}
}

func vmFacts(vm *api.VirtualMachine) policy.VM {
	size := resourcesOf(vm)
	return policy.VM{
		Namespace: vm.Namespace, Name: vm.Name, UID: vm.UID, Generation: vm.Generation,
		IsDeleted: vm.DeletionTimestamp != nil, Binding: policy.BindingOf(vm), IsBound: policy.IsBound(vm),
		Spec: policy.Spec{
			Action: vm.Spec.Action, Driver: vm.Spec.Driver, DeletionPolicy: vm.Spec.DeletionPolicy, RestartPolicy: vm.Spec.RestartPolicy,
			RestartedAt: timeOf(vm.Spec.RestartedAt), GracePeriodSeconds: int64(gracePeriodOf(vm).Seconds()),
			Size: policy.Size{CPUMilli: size.CPUMilli, MemoryBytes: size.MemoryBytes},
		},
		Status: statusFacts(&vm.Status),
	}
}

func statusFacts(s *api.VirtualMachineStatus) policy.Status {
	facts := policy.Status{
		ObservedGeneration: s.ObservedGeneration, Server: serverStatusFacts(s.Server), PendingFields: policy.ListOf(s.PendingFields...),
		RestartedAt: timeOf(s.RestartedAt), StartTime: microTimeOf(s.StartTime),
		Ready: meta.IsStatusConditionTrue(s.Conditions, api.ConditionReady),
	}
	if op := s.Operation; op != nil {
		facts.Operation = policy.Operation{
			Type: op.Type, Generation: op.Generation, Attempts: op.Attempts, NextRetryTime: microTimeOf(op.NextRetryTime),
			Failure: op.Failure, Reason: op.Reason, LastError: truncate(op.LastError), Run: op.Run,
			RestartedAt: timeOf(op.RestartedAt), Epoch: op.Epoch,
		}
	}
	if f := s.RefusedField; f != nil {
		facts.RefusedField = api.RefusedField{Field: f.Field, Reason: f.Reason, Message: truncate(f.Message)}
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

func observedFacts(o *inventory.Observation) policy.Observed {
	return policy.Observed{
		Answer: answers[o.Answer], Server: serverFacts(&o.Server), Duplicates: policy.ListOf(o.Duplicates...), EngineID: o.EngineID,
		DownSince: o.DownSince, Cause: errorText(o.Cause), BackSince: o.BackSince, Fenced: o.Fenced, SettlesAt: o.SettlesAt,
	}
}

func serverFacts(s *driver.Server) policy.Server {
	facts := policy.Server{
		ID: s.ID, Run: s.Run, State: policy.State(s.State), Progress: truncate(s.Progress), Note: truncate(s.Note), Error: errorText(s.Err),
		StartedAt: s.StartedAt, Applied: policy.Size{CPUMilli: s.Applied.CPUMilli, MemoryBytes: s.Applied.MemoryBytes},
		NeedsEnsure: s.NeedsEnsure, HostLost: s.HostLost, Disruption: truncate(s.Disruption),
		IsUnschedulable: s.IsUnschedulable, IsLeaving: s.IsLeaving,
	}
	if e := s.Exit; e != nil {
		facts.Exit = policy.Exit{
			HasEnded: true, Code: e.Code, Reason: e.Reason, At: e.At,
			ByHost: e.ByHost(), NeverRan: e.NeverRan(), NotStarted: e.Reason == driver.ExitNotStarted,
		}
	}
	return facts
}

// isAsReported reports whether the server is as the status says.
func isAsReported(vm *api.VirtualMachine, observed inventory.Observation) bool {
	return policy.IsAsReported(serverStatusFacts(vm.Status.Server), observedFacts(&observed))
}

// errorText returns the text of an error, "" if there is none.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return truncate(cmp.Or(err.Error(), "unknown error"))
}

func timeOf(t *metav1.Time) time.Time           { return ptr.Deref(t, metav1.Time{}).Time }
func microTimeOf(t *metav1.MicroTime) time.Time { return ptr.Deref(t, metav1.MicroTime{}).Time }
