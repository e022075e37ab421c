// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"time"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NewStartCommand returns the verb start.
func NewStartCommand(o *Options) *cobra.Command {
	return newPowerCommand(o, powerVerb{
		use: "start", short: "Start VMs",
		long: "A paused VM is resumed. A VM that has ended by itself, and that its restart policy leaves off,\n" +
			"is started again.",
		examples: []string{"start web", "start web db --wait", "start -l app=web", "start --all"},
		begun:    "starting", done: "started",
		change: startChange,
	})
}

func startChange(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error) {
	switch {
	case vm.Spec.Action != api.ActionActive && vm.Spec.Action != "":
		return &powerChange{Action: api.ActionActive}, "", nil
	case vm.Status.Reason == api.ReasonCompleted, vm.Status.Reason == api.ReasonExited:
		return restartAt(vm, now), "", nil // it ended by itself and stays off
	}
	return nil, "action is already active", nil
}
