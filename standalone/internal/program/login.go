// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/login"
)

// newLoginCommand returns the command that kubeconfigs name. In the package, a small program answers it.
func newLoginCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "login",
		Short: "Log in at this host's Drover service",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return login.Run(newLoginClient(), os.Getenv, cmd.OutOrStdout())
		},
	}
}

func newLoginClient() *login.Client { return login.NewClient(os.Getenv, clock.RealClock{}) }
