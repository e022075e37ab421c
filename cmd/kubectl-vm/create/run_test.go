// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"errors"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/test/assert"
)

func TestNameFor(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"python:3.13": "python", "python": "python", "registry.example.org:5000/team/My_App.v2:v1": "my-app-v2",
		"nginx@sha256:0123": "nginx", "oci://quay.io/containerdisks/debian:12": "debian",
		"https://example.org/images/disk.qcow2?x=a/b": "disk-qcow2", "/srv/images/disk.img": "disk-img",
		"": "vm", "___": "vm", "https://example.org": "example-org",
		"a23456789012345678901234567890123456789012345": "a234567890123456789012345678901234567890"[:40],
	} {
		name := generateName(image)
		assert.True(t, regexp.MustCompile("^"+want+"-[a-z0-9]{5}$").MatchString(name), "image %s makes the name %s, want %s and five letters", image, name, want)
	}
}

// TestWhenRun checks when the log of a VM is to be printed, and when its last run is over.
func TestWhenRun(t *testing.T) {
	t.Parallel()
	server := func(run string, end *api.ServerTerminated) func(*api.VirtualMachineStatus) {
		return func(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{Run: run, Terminated: end} }
	}
	failed := func(reason string, attempts int32) func(*api.VirtualMachineStatus) {
		return func(s *api.VirtualMachineStatus) {
			s.Operation = &api.Operation{Reason: reason, Attempts: attempts}
		}
	}
	ended := &api.ServerTerminated{ExitCode: 3, Reason: "Error"}
	const isFalse, isTrue = metav1.ConditionFalse, metav1.ConditionTrue
	for name, c := range map[string]struct {
		vm    *api.VirtualMachine
		known string
		ok    bool
		err   error
	}{
		"created":                {kittest.NewVM(api.PhaseCreating, api.ReasonFetching, isFalse).Obj(), "", false, nil},
		"not seen to run":        {kittest.NewVM(api.PhaseActive, api.ReasonStarting, isFalse).Status(server("", nil)).Obj(), "", false, nil},
		"runs":                   {kittest.NewVM(api.PhaseActive, api.ReasonProbeFailing, isFalse).Status(server("1", nil)).Obj(), "", true, nil},
		"runs, which is known":   {kittest.NewVM(api.PhaseActive, api.ReasonRunning, isTrue).Status(server("1", nil)).Obj(), "1", false, nil},
		"runs again":             {kittest.NewVM(api.PhaseActive, api.ReasonRunning, isTrue).Status(server("2", nil)).Obj(), "1", true, nil},
		"is to be started again": {kittest.NewVM(api.PhaseActive, api.ReasonRestarting, isFalse).Status(server("1", ended)).Obj(), "1", false, nil},
		"waits for a next try":   {kittest.NewVM(api.PhaseFailed, api.ReasonRestarting, isFalse).Status(server("1", ended)).Obj(), "1", false, nil},
		"failed":                 {kittest.NewVM(api.PhaseFailed, api.ReasonExited, isFalse).Status(server("1", ended)).Status(kittest.WithCondition(api.ConditionStalled)).Obj(), "1", true, nil},
		"ended unseen":           {kittest.NewVM(api.PhaseStopped, api.ReasonCompleted, isTrue).Status(server("", ended)).Obj(), "", true, nil},
		"stopped by others":      {kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, isTrue).Status(server("1", ended)).Obj(), "1", true, nil},
		"stalled":                {kittest.NewVM(api.PhaseFailed, api.ReasonInvalid, isFalse).Status(kittest.WithCondition(api.ConditionStalled)).Obj(), "", false, vms.ErrStalled},
		"lacks its image":        {kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, isFalse).Status(failed(api.ReasonImageUnavailable, imageTries)).Obj(), "", false, vms.ErrStalled},
		"asks for its image":     {kittest.NewVM(api.PhaseFailed, api.ReasonImageUnavailable, isFalse).Status(failed(api.ReasonImageUnavailable, imageTries-1)).Obj(), "", false, nil},
		"lacks memory":           {kittest.NewVM(api.PhaseFailed, api.ReasonExhausted, isFalse).Status(failed(api.ReasonExhausted, 9)).Obj(), "", false, nil},
		"the previous run":       {kittest.NewVM(api.PhaseStopped, api.ReasonCompleted, isTrue).Status(server("1", ended)).Generation(3).Obj(), "", false, nil},
	} {
		ok, err := whenRun(c.vm.Generation, c.known)(c.vm)
		assert.True(t, ok == c.ok && errors.Is(err, c.err), "%s: it is %t, error %v, want %t, %v", name, ok, err, c.ok, c.err)
	}
}
