// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestGoalReady(t *testing.T) {
	restarting := kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").RestartedAt(kittest.Now)
	tests := map[string]struct {
		vm    *framework.VMBuilder
		done  bool
		fails bool
	}{
		"ready":                            {vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True"), done: true},
		"ready before the change was seen": {vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })},
		"not ready":                        {vm: kittest.NewVM(api.PhaseCreating, api.ReasonStarting, "False")},
		"a restart that is to come":        {vm: restarting},
		"stalled":                          {vm: kittest.NewVM(api.PhaseFailed, api.ReasonInvalid, "False").Status(kittest.WithCondition(api.ConditionStalled)), fails: true},
		"deleted":                          {vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").DeletionTimestamp(kittest.Now), fails: true},
	}
	for name, test := range tests {
		done, err := WhenReady(2)(test.vm.Obj())
		assert.True(t, done == test.done && (err != nil) == test.fails, "%s: %t and %v", name, done, err)
	}
}

func TestGoalPowered(t *testing.T) {
	pending := func() *framework.VMBuilder { return kittest.NewVM(api.PhaseActive, api.ReasonChangePending, "False") }
	refused := func(s *api.VirtualMachineStatus) { s.RefusedField = &api.RefusedField{Field: "image"} }
	tests := map[string]struct {
		vm    *framework.VMBuilder
		done  bool
		fails bool
	}{
		"ready":                     {vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True"), done: true},
		"a change waits":            {vm: pending(), done: true},
		"a change was not seen":     {vm: pending().Generation(3).Status(func(s *api.VirtualMachineStatus) { s.ObservedGeneration = 1 })},
		"a restart is to come":      {vm: pending().RestartedAt(kittest.Now)},
		"paused, and wanted active": {vm: kittest.NewVM(api.PhasePaused, api.ReasonChangePending, "False")},
		"a step is in progress":     {vm: pending().Status(kittest.WithFailedAttempts(0))},
		"earlier ends are counted":  {vm: pending().Status(kittest.CountEnds), done: true},
		"a field is refused":        {vm: kittest.NewVM(api.PhaseActive, api.ReasonImageImmutable, "False").Status(refused).Status(kittest.WithCondition(api.ConditionStalled)), done: true},
		"stalled":                   {vm: kittest.NewVM(api.PhaseFailed, api.ReasonInvalid, "False").Status(kittest.WithCondition(api.ConditionStalled)), fails: true},
		"deleted":                   {vm: pending().DeletionTimestamp(kittest.Now), fails: true},
	}
	for name, test := range tests {
		done, err := WhenPowered(2)(test.vm.Obj())
		assert.True(t, done == test.done && (err != nil) == test.fails, "%s: %t and %v", name, done, err)
	}
}

func TestScopeOfAWait(t *testing.T) {
	vm := func(namespace, name string) *AwaitedVM {
		one := &AwaitedVM{VM: &api.VirtualMachine{}}
		one.VM.Namespace, one.VM.Name, one.VM.UID = namespace, name, types.UID(namespace+name)
		return one
	}
	tests := map[string]struct {
		vms                 []*AwaitedVM
		namespace, selector string
	}{
		"one":                   {[]*AwaitedVM{vm("a", "x")}, "a", "metadata.name=x"},
		"several":               {[]*AwaitedVM{vm("a", "x"), vm("a", "y")}, "a", ""},
		"of several namespaces": {[]*AwaitedVM{vm("a", "x"), vm("b", "x")}, "", ""},
	}
	for name, test := range tests {
		w := &Waiter{Open: map[types.UID]*AwaitedVM{}}
		for _, one := range test.vms {
			w.Open[one.VM.UID] = one
		}
		namespace, opts := w.findScope()
		assert.True(t, namespace == test.namespace && opts.FieldSelector == test.selector, "%s: %q and %q", name, namespace, opts.FieldSelector)
	}
}
