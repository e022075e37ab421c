// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"github.com/spf13/cobra"
)

// usageTemplate is cobra's own without the flags of kubectl, which are many and the same for
// every verb.
const usageTemplate = `Usage:{{if and .Runnable (not .HasAvailableSubCommands)}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} VERB{{end}}{{if gt (len .Aliases) 0}}

Aliases:
  {{.NameAndAliases}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{range $group := .Groups}}{{$title := .Title}}{{$first := true}}{{range $cmds}}{{if (and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help")))}}{{if $first}}{{$first = false}}

{{$title}}{{end}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{$first := true}}{{range $cmds}}{{if (and (eq .GroupID "") .IsAvailableCommand)}}{{if $first}}{{$first = false}}

{{if .Groups}}Others:{{else}}Verbs:{{end}}{{end}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{localFlags . | trimTrailingWhitespaces}}{{end}}

{{optionsHint . }}
`

// setUsage sets the texts of the help.
func (o *Options) setUsage(cmd *cobra.Command) {
	cobra.AddTemplateFunc("localFlags", localFlags)
	cobra.AddTemplateFunc("optionsHint", func(cmd *cobra.Command) string {
		hint := fmt.Sprintf("-n, --context and kubectl's other flags: %s options", o.Program)
		if cmd.HasAvailableSubCommands() {
			hint = fmt.Sprintf("More about a verb: %s --help\n%s", cmd.CommandPath()+" VERB", hint)
		}
		return hint
	})
	cmd.SetUsageTemplate(usageTemplate)
}

// localFlags returns the flags of a verb alone.
func localFlags(cmd *cobra.Command) string {
	flags := cmd.LocalNonPersistentFlags()
	return flags.FlagUsagesWrapped(helpColumns)
}

// helpColumns is how wide the help is.
const helpColumns = 100

// NewOptionsCommand returns the command that lists kubectl's flags.
func NewOptionsCommand(o *Options) *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "List kubectl's flags, which every verb takes",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(o.Out, "Every verb takes these flags:\n\n%s", cmd.InheritedFlags().FlagUsagesWrapped(helpColumns))
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
