// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// NewRestartCommand returns the verb restart.
func NewRestartCommand(o *Options) *cobra.Command {
	return newPowerCommand(o, powerVerb{
		use: "restart", short: "Shut VMs down and start them again",
		long: "Changes that wait for a restart take effect. A guest has the VM's\n" +
			"shutdownGracePeriodSeconds to shut down, 30 by default. Under docker, a change of the image\n" +
			"or of ports makes a new container: what was written in the old one is lost.",
		examples: []string{"restart web", "restart web db --wait", "restart -l app=web"},
		begun:    "restarting", done: "restarted",
		change: restartChange,
	})
}

func restartChange(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error) {
	switch vm.Spec.Action {
	case api.ActionStopped:
		return nil, "", errors.New("it is stopped: start it instead")
	case api.ActionPaused:
		return nil, "", errors.New("it is paused: resume it first")
	default:
		return restartAt(vm, now), "", nil
	}
}

// restartAt returns the change that restarts a VM once. Its time has seconds only, and a value
// that is there already would restart nothing.
func restartAt(vm *api.VirtualMachine, now time.Time) *powerChange {
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	for _, earlier := range []*metav1.Time{vm.Spec.RestartedAt, vm.Status.RestartedAt} {
		if earlier != nil && !at.After(earlier.Time) {
			at = metav1.NewTime(earlier.Add(time.Second))
		}
	}
	return &powerChange{RestartedAt: &at}
}
