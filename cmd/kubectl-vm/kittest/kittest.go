// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kittest has options and VMs for tests of the verbs of kubectl vm.
package kittest

import (
	"bytes"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	testingclock "k8s.io/utils/clock/testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/test/framework"
)

// Now is the time of tests.
var Now = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// NewOptions returns options with a clock that stands still, and their output.
func NewOptions() (*kit.Options, *bytes.Buffer) {
	var out bytes.Buffer
	o := kit.NewOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	o.Clock = testingclock.NewFakeClock(Now)
	return o, &out
}

// NewVM returns a VM of generation 2 that a controller has seen. Its condition Ready has had its
// status for five seconds.
func NewVM(phase api.Phase, reason string, ready metav1.ConditionStatus) *framework.VMBuilder {
	return framework.NewVM("web").Generation(2).Status(func(s *api.VirtualMachineStatus) {
		s.Phase, s.Reason, s.ObservedGeneration = phase, reason, 2
		s.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: ready, Reason: reason, LastTransitionTime: metav1.NewTime(Now.Add(-5 * time.Second))}}
	}).Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(Now.Add(-time.Hour)) })
}

// WithCondition adds a condition that is true.
func WithCondition(kind string) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		s.Conditions = append(s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: s.Reason})
	}
}

// CountEnds gives a status an operation that only counts how often the server was started again.
func CountEnds(s *api.VirtualMachineStatus) {
	s.Operation = &api.Operation{Type: api.OperationStart, Attempts: 2, Failure: api.FailureExited, Evicted: true, LastError: "it was evicted"}
}

// WithFailedAttempts gives a status a creation that has failed n times.
func WithFailedAttempts(n int32) func(*api.VirtualMachineStatus) {
	return func(s *api.VirtualMachineStatus) {
		next := metav1.NewMicroTime(Now.Add(42 * time.Second))
		s.Operation = &api.Operation{
			Type: api.OperationCreate, Attempts: n, StartedAt: metav1.NewMicroTime(Now.Add(-time.Minute)), NextRetryTime: &next, Reason: s.Reason, LastError: "it broke",
		}
	}
}

// NewPodVM returns a running VM of driver pod.
func NewPodVM() *api.VirtualMachine {
	vm := NewVM(api.PhaseActive, api.ReasonRunning, "True").Obj()
	vm.Namespace, vm.UID = "blue", "1a2b3c4d-0000-4000-8000-000000000000"
	vm.Spec.Ports = []api.Port{{Name: "ssh", Port: 22, Protocol: api.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: api.ProtocolUDP}}
	vm.Status.Driver, vm.Status.Addresses = "pod", []string{"10.244.1.5"}
	vm.Status.Objects = []api.ServerObject{{Kind: "PersistentVolumeClaim", Name: "web-1a2b3c4d"}, {Kind: "Pod", Name: "web-1a2b3c4d"}}
	return vm
}
