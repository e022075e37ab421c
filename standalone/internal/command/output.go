// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/term"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Exit codes besides 0 and 1.
const (
	exitUsage   = 2
	exitStopped = 3 // the exit code of status, as of systemctl status
)

// Report prints an error and returns the exit code of the program.
func Report(out io.Writer, err error) int {
	code := 1
	if exit, ok := errors.AsType[*kit.ExitError](err); ok {
		if code = exit.Code; exit.Err == nil {
			return code
		}
	}
	_, _ = fmt.Fprintln(out, "drover:", err)
	return code
}

// useUsageCode gives a separate exit code to wrong flags and arguments of a command and its subcommands,
// since exit code 1 is for the findings of the command.
func useUsageCode(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &kit.ExitError{Code: exitUsage, Err: err} })
	for _, c := range append(cmd.Commands(), cmd) {
		if check := c.Args; check != nil {
			c.Args = func(cmd *cobra.Command, args []string) error {
				if err := check(cmd, args); err != nil {
					return &kit.ExitError{Code: exitUsage, Err: err}
				}
				return nil
			}
		}
	}
}

// requireArgs returns a check that there is at least one argument. noun says what the arguments name.
func requireArgs(noun string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("name at least one %s: %s list shows them", noun, cmd.Parent().CommandPath())
		}
		return nil
	}
}

// outputFormat is the flag -o of commands that print a table.
type outputFormat string

const outputJSON outputFormat = "json"

// addOutputFlag adds the flag --output.
func addOutputFlag(f *pflag.FlagSet, o *outputFormat) {
	f.VarP(o, "output", "o", "json prints JSON in place of text for people")
}

// Set implements pflag.Value.
func (o *outputFormat) Set(text string) error {
	if text != string(outputJSON) {
		return errors.New("it must be json, or left out")
	}
	*o = outputFormat(text)
	return nil
}

func (o *outputFormat) String() string { return string(*o) }

// Type implements pflag.Value. It returns the word for the value in the help.
func (o *outputFormat) Type() string { return "format" }

// defaultWidth is the width of text for people without a terminal. maxWidth is the largest width, since
// longer lines are hard to read.
const (
	defaultWidth = 80
	maxWidth     = 100
)

// styleOf returns the style of findings for an output.
func styleOf(out io.Writer) findings.Style {
	width, _, err := term.TerminalSize(printable.File(out))
	if err != nil {
		return findings.Style{Width: defaultWidth}
	}
	return findings.Style{Width: min(width, maxWidth), Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}
