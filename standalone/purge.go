// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newPurgeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "purge",
		Short: "Remove this installation's servers and, with --data, its data",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return errors.New("not in this build") },
	}
}
