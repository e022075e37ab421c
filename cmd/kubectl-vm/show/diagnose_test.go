// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestCountedEnds checks that a VM which runs is not said to fail for the ends before, which are named.
func TestCountedEnds(t *testing.T) {
	runs := kittest.NewVM(api.PhaseActive, api.ReasonChangePending, "False").Status(kittest.CountEnds).Obj()
	o, _ := kittest.NewOptions()
	if facts := strings.Join(newDescriber(o).operationFacts(runs), " "); vms.IsFailing(runs) || !strings.Contains(facts, "started again 2 times in a row") || !strings.Contains(facts, "it was evicted") {
		t.Errorf("it fails: %t, %s", vms.IsFailing(runs), facts)
	}
	waits := kittest.NewVM(api.PhaseFailed, api.ReasonRestarting, "False").Status(kittest.CountEnds).Obj()
	facts := strings.Join(newDescriber(o).operationFacts(waits), " ")
	assert.True(t, vms.IsFailing(waits) && strings.Contains(facts, "starting the server"), "one that waits to be started fails: %t, %s", vms.IsFailing(waits), facts)
}

func TestVerdict(t *testing.T) {
	deleted := func(b *framework.VMBuilder) *framework.VMBuilder { return b.DeletionTimestamp(kittest.Now) }
	tests := map[string]struct {
		vm   *framework.VMBuilder
		want Verdict
	}{
		"runs":                     {kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True"), verdictHealthy},
		"stopped as asked":         {kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True"), verdictHealthy},
		"a job that is done":       {kittest.NewVM(api.PhaseStopped, api.ReasonCompleted, "True"), verdictHealthy},
		"boots":                    {kittest.NewVM(api.PhaseCreating, api.ReasonStarting, "False"), verdictWaiting},
		"fails for the first time": {kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(kittest.WithFailedAttempts(1)), verdictWaiting},
		"fails again and again":    {kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(kittest.WithFailedAttempts(maxAttempts)), verdictNeedsYou},
		"fails for long": {kittest.NewVM(api.PhaseActive, api.ReasonProbeFailing, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(kittest.Now.Add(-time.Hour))
		}), verdictNeedsYou},
		"stops for long": {kittest.NewVM(api.PhaseActive, api.ReasonStopping, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(kittest.Now.Add(-time.Hour))
		}), verdictNeedsYou},
		"was evicted, and runs again": {kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Status(kittest.WithFailedAttempts(maxAttempts)), verdictHealthy},
		"boots for long": {kittest.NewVM(api.PhaseCreating, api.ReasonFetching, "False").Status(func(s *api.VirtualMachineStatus) {
			s.Conditions[0].LastTransitionTime = metav1.NewTime(kittest.Now.Add(-time.Hour))
		}), verdictWaiting},
		"needs a person":              {kittest.NewVM(api.PhaseFailed, api.ReasonPortConflict, "False").Status(kittest.WithFailedAttempts(1)), verdictNeedsYou},
		"stalled":                     {kittest.NewVM(api.PhaseFailed, api.ReasonInvalid, "False").Status(kittest.WithCondition(api.ConditionStalled)), verdictNeedsYou},
		"stalled by a later reason":   {kittest.NewVM(api.PhaseFailed, "OfALaterVersion", "False").Status(kittest.WithCondition(api.ConditionStalled)), verdictNeedsYou},
		"a later reason":              {kittest.NewVM(api.PhaseFailed, "OfALaterVersion", "False"), verdictWaiting},
		"waits for a restart":         {kittest.NewVM(api.PhaseActive, api.ReasonChangePending, "False"), verdictNeedsYou},
		"an engine that is away":      {kittest.NewVM(api.PhaseUnknown, api.ReasonEngineUnavailable, "Unknown"), verdictWaiting},
		"being deleted":               {deleted(kittest.NewVM(api.PhaseTerminating, api.ReasonTerminating, "False")), verdictWaiting},
		"a deletion that is blocked":  {deleted(kittest.NewVM(api.PhaseTerminating, api.ReasonEngineMismatch, "Unknown").Status(kittest.WithCondition(api.ConditionDeletionBlocked))), verdictNeedsYou},
		"a deletion that may go on":   {deleted(kittest.NewVM(api.PhaseTerminating, api.ReasonEngineUnavailable, "Unknown").Status(kittest.WithCondition(api.ConditionDeletionBlocked))), verdictWaiting},
		"just created":                {framework.NewVM("web").Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(kittest.Now) }), verdictWaiting},
		"seen by none":                {framework.NewVM("web").Meta(func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.NewTime(kittest.Now.Add(-time.Minute)) }), verdictNeedsYou},
		"just changed":                {kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Generation(3).Meta(changedBefore(time.Second)), verdictWaiting},
		"a change that none has seen": {kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Generation(3).Meta(changedBefore(time.Minute)), verdictNeedsYou},
	}
	for name, test := range tests {
		o, _ := kittest.NewOptions()
		d := newDescriber(o).diagnoseVM(test.vm.Obj())
		assert.Equal(t, name+": verdict", d.verdict, test.want)
		assert.True(t, d.verdict == verdictHealthy || len(d.steps) != 0 || strings.Contains(name, "later"), "%s: nothing to do", name)
	}
}

func changedBefore(ago time.Duration) func(*metav1.ObjectMeta) {
	return func(m *metav1.ObjectMeta) {
		at, status := metav1.NewTime(kittest.Now.Add(-ago)), metav1.NewTime(kittest.Now)
		m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &at}, {Manager: "drover", Subresource: "status", Time: &status}}
	}
}

func TestDiagnosis(t *testing.T) {
	o, _ := kittest.NewOptions()
	vm := kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(kittest.WithFailedAttempts(7)).Status(func(s *api.VirtualMachineStatus) {
		s.Message = "pull image x: \x1b[2Jnot found"
		s.Driver, s.Binding = "docker", &api.Binding{Driver: "docker", EngineID: "3f6c8a52-8e1b-4f9a"}
	}).Status(kittest.WithCondition(api.ConditionObserved)).Obj()
	d := newDescriber(o).diagnoseVM(vm)
	text := strings.Join(append(append([]string{d.headline, d.message}, d.facts...), d.steps...), "\n")
	for _, want := range []string{
		"web is not ready: Failed, ImageUnavailable", "pull image x: ?[2Jnot found", "creating the server for 60s", "failed 7 times in a row",
		"next try is in 42s, at 2026-01-31 12:00:42Z", "The last error: it broke", "Ready has been False for 5s", "(3f6c8a52-8e1b-4f9a)", "but it does not have the server", "docker pull",
	} {
		assert.True(t, strings.Contains(text, want), "it does not say %q:\n%s", want, text)
	}
}

// TestOneView checks that show and explain say the same of the state, of the step in progress and of
// the changes that wait for a restart.
func TestOneView(t *testing.T) {
	vm := kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, "False").Status(kittest.WithFailedAttempts(7)).Status(func(s *api.VirtualMachineStatus) {
		s.Message, s.PendingFields = "not found", []string{"ports"}
	}).Obj()
	o, _ := kittest.NewOptions()
	v := newDescriber(o).viewOf(vm)
	table := ""
	for _, r := range v.table {
		table += r.value + "\n"
	}
	facts := strings.Join(v.facts, " ")
	for _, want := range []string{"creating the server for 60s", "failed 7 times in a row", "next try is in 42s", "restart web): ports."} {
		assert.True(t, strings.Contains(table, want) && strings.Contains(facts, want), "not both say %q:\n%s\n%s", want, table, facts)
	}
}
