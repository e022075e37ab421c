// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Groups of verbs in the help.
const (
	groupLifecycle = "lifecycle"
	groupObserve   = "observe"
	groupConnect   = "connect"
	groupAdmin     = "admin"
)

// formatExamples returns the examples of a verb's help.
func (o *Options) formatExamples(lines ...string) string {
	for i, line := range lines {
		lines[i] = "  " + o.Program + " " + line
	}
	return strings.Join(lines, "\n")
}

// refuseUnknownVerb reports a verb that does not exist, and similar ones that do.
func refuseUnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("%q is not a verb of %s", args[0], cmd.DisplayName())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// refuseArgs refuses arguments.
func refuseArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, and %q was given", cmd.Name(), args[0])
	}
	return nil
}

// requireNames checks that a VM is named.
func requireNames(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("no VM is named: give NAME")
	}
	return nil
}

// requireOneName checks that one VM is named.
func requireOneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments: give one NAME", len(args))
	}
	return nil
}

// commandRule says whether a command may follow the name of a VM, behind the dashes.
type commandRule int

// The rules, in the order in which they ask for more.
const (
	noCommand commandRule = iota
	mayHaveCommand
	needsCommand
)

// requireNameAndCommand returns a check for the name of a VM, and a command behind the dashes.
func requireNameAndCommand(rule commandRule) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if dash < 0 {
			dash = len(args)
		}
		switch {
		case dash == 0:
			return errors.New("no VM is named: give NAME")
		case dash > 1 && rule != noCommand:
			return fmt.Errorf("put -- before the command: %s %s -- %s", cmd.CommandPath(), args[0], strings.Join(args[1:], " "))
		case dash > 1 || (len(args) > dash && rule == noCommand):
			return fmt.Errorf("%q is not expected: give one NAME", args[1])
		case len(args) == dash && rule == needsCommand:
			return fmt.Errorf("no command is given: %s %s -- COMMAND", cmd.CommandPath(), args[0])
		}
		return nil
	}
}
