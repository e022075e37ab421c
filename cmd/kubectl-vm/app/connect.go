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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/exec"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// connection has the options of the verbs that connect to a VM.
type connection struct{ *Options }

// newConnectCommand returns a command of the group that connects.
func (c *connection) newConnectCommand(cmd *cobra.Command) *cobra.Command {
	cmd.GroupID, cmd.ValidArgsFunction = groupConnect, c.CompleteVM
	return cmd
}

// place is a VM that a verb connects to.
type place struct {
	*Options
	client          *streams.Client
	namespace, name string
	// vm is the VM, or vmErr why it could not be read. Decisions need neither.
	vm    *api.VirtualMachine
	vmErr error
}

// findStream returns where a stream of the VM of an argument is, and a client for it.
func (c *connection) findStream(ctx context.Context, arg string, s streamsapi.Stream) (p place, err error) {
	p.Options = c.Options
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
	if s != streamsapi.Decisions {
		p.vm, p.vmErr = c.GetVM(ctx, p.namespace, p.name)
	}
	p.client, err = streams.Discover(ctx, config)
	if p.vm == nil || p.vm.Status.Driver != driverPod || err == nil && p.client.Serves(driverPod) {
		return p, err
	}
	notFound := err
	if p.client, err = c.connectToPod(config, p.vm, s); err != nil && notFound != nil && !apierrors.IsNotFound(notFound) {
		err = notFound // Drover may serve it, such as without --as
	}
	return p, err
}

// The exit codes that shells have for commands that cannot be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// describe returns what the server said about a stream, and passes the exit code of a command
// on.
func (p place) describe(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var exit exec.CodeExitError
	status, cause := apierrors.APIStatus(nil), streams.Cause(err)
	isStatus := errors.As(cause, &status)
	switch reason := streams.EndReason(err); {
	case errors.As(err, &exit):
		return &ExitError{Code: exit.Code}
	case reason == streamsapi.ReasonCommandNotFound:
		return &ExitError{Code: exitNotFound, Err: cause}
	case reason == streamsapi.ReasonCommandNotExecutable:
		return &ExitError{Code: exitNotExecutable, Err: cause}
	case apierrors.IsNotFound(cause) && isStatus && status.Status().Details != nil:
		return &notFoundError{namespace: p.namespace, name: p.name}
	case apierrors.IsConflict(cause), reason == metav1.StatusReasonConflict:
		return p.withAdvice(ctx, cause)
	}
	return cause
}

// withAdvice adds to an error of a server that takes no streams what to do, if the VM's status
// has it.
func (p place) withAdvice(ctx context.Context, cause error) error {
	vm, err := p.GetVM(ctx, p.namespace, p.name)
	if err != nil {
		return cause
	}
	if off := p.checkPower(vm); off != nil {
		return fmt.Errorf("%w; %w", cause, off)
	}
	if !isReady(vm) {
		return fmt.Errorf("%w; to see why: %s explain %s", cause, p.Program, p.name)
	}
	return cause
}

// checkPower fails if a VM takes no connections because its spec says so.
func (o *Options) checkPower(vm *api.VirtualMachine) error {
	switch {
	case vm.Spec.Action == api.ActionStopped && vm.Status.Phase == api.PhaseStopped:
		return fmt.Errorf("%s is stopped, to start it: %s start %s", vm.Name, o.Program, vm.Name)
	case vm.Spec.Action == api.ActionPaused && vm.Status.Phase == api.PhasePaused:
		return fmt.Errorf("%s is paused, to resume it: %s resume %s", vm.Name, o.Program, vm.Name)
	}
	return nil
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
