// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestDocsHaveEveryVerb checks that the page shows every verb, and that each has a help.
func TestDocsHaveEveryVerb(t *testing.T) {
	page, err := os.ReadFile("../../../docs/kubectl-vm.md")
	assert.NoError(t, err)
	o, _ := kittest.NewOptions()
	root := NewCommand(o)
	assert.Require(t, len(root.Commands()) >= 10, "there are only %d verbs", len(root.Commands()))
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, verb := range cmd.Commands() {
			name := strings.TrimPrefix(verb.CommandPath(), root.CommandPath()+" ")
			assert.True(t, strings.Contains(string(page), "kubectl vm "+name), "the page does not show kubectl vm %s", name)
			if verb.Short == "" || verb.ValidArgsFunction == nil && verb.ValidArgs == nil && verb.Runnable() && !verb.HasSubCommands() && !hasNoArguments(verb) {
				t.Errorf("%s lacks help, or proposes files as its arguments", name)
			}
			check(verb)
		}
	}
	check(root)
}

// hasNoArguments reports whether a verb refuses arguments.
func hasNoArguments(verb *cobra.Command) bool {
	return verb.Args != nil && verb.Args(verb, []string{"x"}) != nil
}
