// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// execOptions are the flags of exec.
type execOptions struct {
	*kit.Options
	stdin, tty bool
}

// NewExecCommand returns the verb exec.
func NewExecCommand(o *kit.Options) *cobra.Command {
	e := &execOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use: "exec NAME [flags] -- COMMAND [ARG...]", DisableFlagsInUseLine: true,
		Short:   "Run a command in a VM",
		Example: o.FormatExamples("exec web -- uname -a", "exec -it web -- sh"),
		Long: "Run a command in a VM, and exit with its exit code.\n" +
			"In a container, the engine runs it; in a machine of a container image, Drover's program.\n" +
			"In any other machine, the QEMU guest agent does: the guest has to run qemu-guest-agent,\n" +
			"and a command runs without a terminal.",
		Args: kit.RequireNameAndCommand(kit.NeedsCommand),
		RunE: func(cmd *cobra.Command, args []string) error { return e.runCommand(cmd.Context(), args[0], args[1:]) },
	})
	cmd.Flags().BoolVarP(&e.stdin, "stdin", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&e.tty, "tty", "t", false, "give the command a terminal; not by the QEMU guest agent")
	return cmd
}

func (e *execOptions) runCommand(ctx context.Context, name string, command []string) error {
	to, err := vms.FindTarget(ctx, e.Options, name, streamsapi.Exec)
	if err != nil {
		return err
	}
	ctx, cancel := printable.NewOutput(e.Out).UntilFailed(ctx) // Connect does not tell
	defer cancel()
	query := url.Values{"command": command, "stdout": {"true"}, "stdin": {strconv.FormatBool(e.stdin)}}
	o := remotecommand.StreamOptions{Stdout: e.Out}
	if e.stdin {
		o.Stdin = e.In
	}
	restore, err := e.prepareTerminal(ctx, &o, query)
	if err != nil {
		return err
	}
	err = to.RunCommand(ctx, query, o)
	restore()
	return to.WrapError(ctx, err)
}

// prepareTerminal asks for a terminal if there is one on this side, as kubectl does, or else
// for a separate error output.
func (e *execOptions) prepareTerminal(ctx context.Context, o *remotecommand.StreamOptions, query url.Values) (restore func(), err error) {
	terminal := streams.OpenTerminal(e.In, e.Out)
	if !e.tty || terminal == nil || !e.stdin {
		query.Set("stderr", "true")
		o.Stderr = e.ErrOut
		return func() {}, nil
	}
	query.Set("tty", "true")
	o.Tty, o.TerminalSizeQueue = true, terminal.WatchSize(ctx)
	return terminal.MakeRaw()
}
