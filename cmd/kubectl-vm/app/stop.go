// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"time"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NewStopCommand returns the verb stop.
func NewStopCommand(o *Options) *cobra.Command {
	return newPowerCommand(o, powerVerb{
		use: "stop", short: "Shut VMs down",
		long: "A guest has the VM's shutdownGracePeriodSeconds to shut down, 30 by default. Then it is\n" +
			"stopped by force. Disks are kept, and the VM stays off until it is started.",
		examples: []string{"stop web", "stop web db --wait", "stop -l app=web", "stop --all"},
		begun:    "stopping", done: "stopped",
		change: stopChange,
	})
}

func stopChange(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	if vm.Spec.Action == api.ActionStopped {
		return nil, "action is already stopped", nil
	}
	return &powerChange{Action: api.ActionStopped}, "", nil
}
