// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import "github.com/spf13/cobra"

// joinGroup puts a verb into the group of those that connect to one VM, whose names it completes.
func joinGroup(o *Options, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID, cmd.ValidArgsFunction = groupConnect, completeVM(o)
	return cmd
}
