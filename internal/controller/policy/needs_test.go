// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
	"cloudnative.tw/drover/internal/driver"
)

// TestNeedsEnsure checks that a driver which asks for an Ensure gets one in every state that else
// waits, even where the spec was passed before, and that a server which is off stays off.
func TestNeedsEnsure(t *testing.T) {
	starting := func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: api.OperationStart, StartedAt: metav1.NewMicroTime(policytest.T0)}
	}
	stopping := func(s *api.VirtualMachineStatus) {
		s.Operation = &api.Operation{Type: api.OperationStop, StartedAt: metav1.NewMicroTime(policytest.T0)}
	}
	for name, tc := range map[string]struct {
		state, action, policy string
		status                func(*api.VirtualMachineStatus)
		want                  string
	}{
		"starting":        {"starting", "active", "Always", starting, "ensure On Start => Creating Starting"},
		"starting paused": {"starting", "paused", "Always", starting, "ensure Paused Start => Creating Starting"},
		"stopping":        {"stopping", "stopped", "Always", stopping, "ensure Off Stop => Active Stopping"},
		"completed":       {"ended 0", "active", "OnFailure", nil, "ensure Off Update => Stopped Completed ready"},
		"exited":          {"ended 1", "active", "Never", nil, "ensure Off Update => Failed Exited"},
		"exited, again":   {"ended 1", "active", "Always", nil, "ensure On Start => Creating Restarting"},
	} {
		t.Run(name, func(t *testing.T) {
			vm := policytest.ReportedVM().Action(api.Action(tc.action)).RestartPolicy(api.RestartPolicy(tc.policy))
			if tc.status != nil {
				vm = vm.Status(tc.status)
			}
			observed := observations[tc.state]
			observed.Server.NeedsEnsure = true
			if tc.state == "starting" {
				observed.Server.Progress = "the pod waits to be scheduled"
			}
			d := Decide(inputOf(vm.Obj(), observed))
			if got := summaryOf(d); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if isUpdate := d.Action.Operation == api.OperationUpdate; d.Action.FollowsUp != isUpdate {
				t.Errorf("follows up is %t, want %t", d.Action.FollowsUp, isUpdate)
			}
			if d := Decide(inputOf(vm.Generation(3).Obj(), observed)); d.Action.FollowsUp {
				t.Error("with another generation, it follows up")
			}
		})
	}
}

// TestNeedsEnsureInDeletion checks that a stop for a deletion waits for no driver that asks for an Ensure.
func TestNeedsEnsureInDeletion(t *testing.T) {
	vm := policytest.ReportedVM().Obj()
	vm.DeletionTimestamp = &metav1.Time{Time: policytest.T0}
	observed := policytest.Present(driver.StateStopping)
	observed.Server.NeedsEnsure = true
	d := Decide(inputOf(vm, observed))
	if d.Action.Step != StepEnsure || d.Action.Power != driver.PowerOff || !d.Action.StopBy.Equal(policytest.T0.Add(30*time.Second)) {
		t.Errorf("got %s, stop by %s", summaryOf(d), d.Action.StopBy)
	}
}
