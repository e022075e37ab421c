// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Groups of verbs in the help.
const (
	GroupLifecycle = "lifecycle"
	GroupObserve   = "observe"
	GroupConnect   = "connect"
	GroupAdmin     = "admin"
)

// FormatExamples returns the examples of a verb's help.
func (o *Options) FormatExamples(lines ...string) string {
	prefix := "  " + o.Program + " "
	return prefix + strings.Join(lines, "\n"+prefix)
}

// NewVerbGroup returns a command that only contains verbs. Without a verb it prints its help.
func NewVerbGroup(cmd *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	cmd.Args = RefuseUnknownVerb
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(verbs...)
	return cmd
}

// RefuseUnknownVerb returns an error for a verb that does not exist, with similar verbs.
func RefuseUnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("%q is not a verb of %s", args[0], cmd.DisplayName())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// RefuseArgs returns an error if there are arguments.
func RefuseArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s does not take arguments, but %q was given", cmd.Name(), args[0])
	}
	return nil
}

// RequireNames checks that a VM is named.
func RequireNames(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("no VM is named: give NAME")
	}
	return nil
}

// RequireOneName checks that one VM is named.
func RequireOneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments: give one NAME", len(args))
	}
	return nil
}

// CommandRule says whether a command may or must follow the name of a VM and the argument --.
type CommandRule int

// Values of CommandRule.
const (
	WithoutCommand CommandRule = iota
	WithOptionalCommand
	WithCommand
)

// RequireName returns a check that one VM is named, and that a command follows -- as the rule says.
func RequireName(rule CommandRule) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if dash < 0 {
			dash = len(args)
		}
		switch {
		case dash == 0:
			return errors.New("no VM is named: give NAME")
		case dash > 1 && rule != WithoutCommand:
			return fmt.Errorf("put -- before the command: %s %s -- %s", cmd.CommandPath(), args[0], strings.Join(args[1:], " "))
		case dash > 1 || (len(args) > dash && rule == WithoutCommand):
			return fmt.Errorf("%q is not expected: give one NAME", args[1])
		case len(args) == dash && rule == WithCommand:
			return fmt.Errorf("no command is given: %s %s -- COMMAND", cmd.CommandPath(), args[0])
		}
		return nil
	}
}

// completionTimeout is how long a completion may wait for the API server. A completion without
// proposals is better than a shell that hangs.
const completionTimeout = 3 * time.Second

// NewCompletionContext returns a context for a completion, with completionTimeout.
func NewCompletionContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), completionTimeout)
}
