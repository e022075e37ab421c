// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NewResumeCommand returns the verb resume.
func NewResumeCommand(o *Options) *cobra.Command {
	return newPowerCommand(o, powerVerb{
		use: "resume", short: "Resume paused VMs",
		long:     "The guest goes on where it was paused.",
		examples: []string{"resume web", "resume --all --wait"},
		begun:    "resuming", done: "resumed",
		change: resumeChange,
	})
}

func resumeChange(vm *api.VirtualMachine, _ time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionPaused:
		return &powerChange{Action: api.ActionActive}, "", nil
	case api.ActionStopped:
		return nil, "", errors.New("it is stopped, not paused: start it")
	default:
		return nil, "it is not paused", nil
	}
}
