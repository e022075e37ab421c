// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// powerVerb is a verb that changes the power state of VMs.
type powerVerb struct {
	name, short, long string
	examples          []string
	// begun and done are printed about a VM after the request, and after a wait.
	begun, done string
	// change returns the change of the spec, or nil and the reason why the spec is not changed.
	change func(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error)
}

// powerChange is a change of a spec. Empty fields are not changed.
type powerChange struct {
	Action      api.Action   `json:"action,omitempty"`
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
}

// powerVerbs are the verbs that change the power state, in the order of the help.
var powerVerbs = []powerVerb{
	{
		name: "start", short: "Start VMs", begun: "starting", done: "started", change: startVM,
		long: "A paused VM is resumed. A VM that has ended by itself, and that its restart policy leaves off,\n" +
			"is started again.",
		examples: []string{"start web", "start web db --wait", "start -l app=web", "start --all"},
	},
	{
		name: "stop", short: "Shut VMs down", begun: "stopping", done: "stopped", change: stopVM,
		long: "A guest has the VM's shutdownGracePeriodSeconds to shut down, 30 by default. Then it is\n" +
			"stopped by force. Disks are kept, and the VM stays off until it is started.",
		examples: []string{"stop web", "stop web db --wait", "stop -l app=web", "stop --all"},
	},
	{
		name: "restart", short: "Shut VMs down and start them again", begun: "restarting", done: "restarted", change: restartVM,
		long: "Changes that wait for a restart take effect. A guest has the VM's\n" +
			"shutdownGracePeriodSeconds to shut down, 30 by default. Under docker, a change of the image\n" +
			"or of ports makes a new container: what was written in the old one is lost.",
		examples: []string{"restart web", "restart web db --wait", "restart -l app=web"},
	},
	{
		name: "pause", short: "Freeze VMs, which keep their memory and use no CPU", begun: "pausing", done: "paused", change: pauseVM,
		long:     "A paused VM goes on where it was when it is resumed.",
		examples: []string{"pause web", "pause -l app=web --wait"},
	},
	{
		name: "resume", short: "Resume paused VMs", begun: "resuming", done: "resumed", change: resumeVM,
		long:     "The guest goes on where it was paused.",
		examples: []string{"resume web", "resume --all --wait"},
	},
}

func startVM(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error) {
	switch {
	case vm.Spec.Action != api.ActionActive && vm.Spec.Action != "":
		return &powerChange{Action: api.ActionActive}, "", nil
	case vm.Status.Reason == api.ReasonCompleted, vm.Status.Reason == api.ReasonExited:
		return restartAt(vm, now), "", nil // the server has ended by itself and stays off
	}
	return nil, "action is already active", nil
}

func stopVM(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	if vm.Spec.Action == api.ActionStopped {
		return nil, "action is already stopped", nil
	}
	return &powerChange{Action: api.ActionStopped}, "", nil
}

func restartVM(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionStopped:
		return nil, "", errors.New("the VM is stopped: start it instead")
	case api.ActionPaused:
		return nil, "", errors.New("the VM is paused: resume it first")
	default:
		return restartAt(vm, now), "", nil
	}
}

func pauseVM(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionPaused:
		return nil, "action is already paused", nil
	case api.ActionStopped:
		return nil, "", errors.New("the VM is stopped, so it cannot be paused: start it first")
	default:
		return &powerChange{Action: api.ActionPaused}, "", nil
	}
}

func resumeVM(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionPaused:
		return &powerChange{Action: api.ActionActive}, "", nil
	case api.ActionStopped:
		return nil, "", errors.New("the VM is stopped, not paused: start it")
	default:
		return nil, "the VM is not paused", nil
	}
}

// restartAt returns the change that restarts a VM once. The API keeps whole seconds, so restartAt adds
// one second if the VM already has this time: the same time would not cause a restart.
func restartAt(vm *api.VirtualMachine, now time.Time) *powerChange {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	for _, earlier := range []*metav1.Time{vm.Spec.RestartedAt, vm.Status.RestartedAt} {
		if earlier != nil && !at.After(earlier.Time) {
			at = metav1.NewTime(earlier.Add(time.Second))
		}
	}
	return &powerChange{RestartedAt: &at}
}
