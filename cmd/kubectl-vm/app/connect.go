// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/exec"

	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// connection is what the verbs share that connect to a VM.
type connection struct{ *Options }

// newConnectCommand returns a command of the group that connects.
func (c *connection) newConnectCommand(cmd *cobra.Command) *cobra.Command {
	cmd.GroupID, cmd.ValidArgsFunction = groupConnect, c.CompleteVM
	return cmd
}

// place is a VM that a verb connects to.
type place struct {
	client          *streams.Client
	namespace, name string
}

// connect returns where the VM of an argument is, and a client for it.
func (c *connection) connect(ctx context.Context, arg string) (p place, err error) {
	if p.name, err = parseName(arg); err != nil {
		return p, err
	}
	if p.namespace, err = c.Namespace(); err != nil {
		return p, err
	}
	config, err := c.RESTConfig()
	if err != nil {
		return p, err
	}
	p.client, err = streams.Discover(ctx, config)
	return p, err
}

// describe returns what the server said about a stream, and passes the exit code of a command
// on.
func (p place) describe(err error) error {
	var exit exec.CodeExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &ExitError{Code: exit.Code}
	case apierrors.IsNotFound(streams.Cause(err)):
		return &notFoundError{namespace: p.namespace, name: p.name}
	}
	return streams.Cause(err)
}

// What may follow the name of a VM behind the dashes.
const (
	noCommand = iota
	mayHaveCommand
	needsCommand
)

// oneName returns a check for the name of a VM, and a command behind the dashes.
func oneName(command int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		if dash < 0 {
			dash = len(args)
		}
		switch {
		case dash == 0:
			return errors.New("no VM is named: give NAME")
		case dash > 1 && command != noCommand:
			return fmt.Errorf("put -- before the command: %s %s -- %s", cmd.CommandPath(), args[0], strings.Join(args[1:], " "))
		case dash > 1 || len(args) > dash && command == noCommand:
			return fmt.Errorf("%q is not expected: give one NAME", args[1])
		case len(args) == dash && command == needsCommand:
			return fmt.Errorf("no command is given: %s %s -- COMMAND", cmd.CommandPath(), args[0])
		}
		return nil
	}
}
