// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// VMCheck returns nil, or an error that describes what is wrong.
type VMCheck func(*api.VirtualMachine) error

// IsActive requires that the VM runs and is ready, and that its status is about the
// latest spec.
func IsActive(vm *api.VirtualMachine) error {
	return errors.Join(
		HasPhase(api.PhaseActive, api.ReasonRunning)(vm),
		HasCondition(api.ConditionReady, metav1.ConditionTrue)(vm),
	)
}

// HasPhase requires phase and reason, for the latest spec.
func HasPhase(phase api.Phase, reason string) VMCheck {
	return func(vm *api.VirtualMachine) error {
		s := &vm.Status
		return assert.ErrorUnless(s.Phase == phase && s.Reason == reason && s.ObservedGeneration == vm.Generation,
			"phase %q, reason %q, generation %d: want %q, %q, %d", s.Phase, s.Reason, s.ObservedGeneration, phase, reason, vm.Generation)
	}
}

// HasCondition requires a condition of the latest spec; with an empty status it must be
// absent.
func HasCondition(kind string, status metav1.ConditionStatus) VMCheck {
	return func(vm *api.VirtualMachine) error {
		c := meta.FindStatusCondition(vm.Status.Conditions, kind)
		switch {
		case c == nil && status == "":
			return nil
		case c == nil || c.Status != status || c.ObservedGeneration != vm.Generation:
			return fmt.Errorf("condition %s is %+v: want %q", kind, c, status)
		}
		return nil
	}
}

// HasMessage requires a text in the status's message.
func HasMessage(text string) VMCheck {
	return func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(strings.Contains(vm.Status.Message, text), "message %q: want %q in it", vm.Status.Message, text)
	}
}

// HasUsage requires that the server was sampled.
func HasUsage(vm *api.VirtualMachine) error {
	return assert.ErrorUnless(vm.Status.Server != nil && vm.Status.Server.Usage != nil, "the status lacks the usage")
}

// FormatStatus returns a VM's status in readable form.
func FormatStatus(vm *api.VirtualMachine) string {
	text, err := json.Marshal(vm.Status)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
