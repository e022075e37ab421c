// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// setUsage sets the text below a verb's description. Unlike the text of cobra, it leaves out the many
// flags of kubectl, which are the same for every verb.
func setUsage(o *kit.Options, root *cobra.Command) {
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprint(cmd.OutOrStdout(), usageText(o, cmd))
		return err
	})
}

func usageText(o *kit.Options, cmd *cobra.Command) string {
	var b strings.Builder
	verbs := cmd.HasAvailableSubCommands()
	if verbs {
		fmt.Fprintf(&b, "Usage:\n  %s VERB\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAlso called:\n  %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, group := range append(slices.Clone(cmd.Groups()), &cobra.Group{Title: "Others:"}) {
		writeVerbs(&b, cmd, group)
	}
	if flags := cmd.LocalNonPersistentFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(&b, "\nFlags:\n%s", flags.FlagUsagesWrapped(helpColumns))
	}
	if verbs {
		fmt.Fprintf(&b, "\nMore about a verb: %s VERB --help", cmd.CommandPath())
	}
	fmt.Fprintf(&b, "\n-n, --context and kubectl's other flags: %s options\n", o.Program)
	return b.String()
}

// writeVerbs lists the verbs of a group.
func writeVerbs(b *strings.Builder, cmd *cobra.Command, group *cobra.Group) {
	title := group.Title
	if len(cmd.Groups()) == 0 {
		title = "Verbs:"
	}
	for _, verb := range cmd.Commands() {
		if verb.GroupID != group.ID || !verb.IsAvailableCommand() {
			continue
		}
		if title != "" {
			fmt.Fprintf(b, "\n%s\n", title)
		}
		title = ""
		fmt.Fprintf(b, "  %-12s %s\n", verb.Name(), verb.Short)
	}
}

// helpColumns is the width of the help, in columns.
const helpColumns = 100

// newOptionsCommand returns the command that lists kubectl's flags.
func newOptionsCommand(o *kit.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "List kubectl's flags, which every verb takes",
		Args:  kit.RefuseArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(o.Out, "Every verb takes these flags:\n\n%s", cmd.InheritedFlags().FlagUsagesWrapped(helpColumns))
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
