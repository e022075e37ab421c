// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"
)

func (p Program) newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Drover and of the embedded Kubernetes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "drover %s (kubernetes %s, %s, %s/%s)\n",
				p.Version, version.Get().GitVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
