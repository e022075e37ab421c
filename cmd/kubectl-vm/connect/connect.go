// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// joinGroup puts a verb into the group of verbs that connect to one VM, and completes names of VMs for the verb.
func joinGroup(o *kit.Options, cmd *cobra.Command) *cobra.Command {
	cmd.GroupID, cmd.ValidArgsFunction = kit.GroupConnect, vms.CompleteVM(o)
	return cmd
}
