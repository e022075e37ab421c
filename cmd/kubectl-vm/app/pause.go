// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NewPauseCommand returns the verb pause.
func NewPauseCommand(o *Options) *cobra.Command {
	return newPowerCommand(o, powerVerb{
		use: "pause", short: "Freeze VMs, which keep their memory and use no CPU",
		long:     "A paused VM goes on where it was when it is resumed.",
		examples: []string{"pause web", "pause -l app=web --wait"},
		begun:    "pausing", done: "paused",
		change: pauseChange,
	})
}

func pauseChange(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionPaused:
		return nil, "action is already paused", nil
	case api.ActionStopped:
		return nil, "", errors.New("it is stopped, so there is nothing to pause: start it first")
	default:
		return &powerChange{Action: api.ActionPaused}, "", nil
	}
}
