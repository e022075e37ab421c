// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// NewVersionCommand returns the verb version.
func NewVersionCommand(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(o.Out, versionText())
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

func versionText() string {
	return fmt.Sprintf("kubectl-vm %s (%s, %s/%s)", Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
