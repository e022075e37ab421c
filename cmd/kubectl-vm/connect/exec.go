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
	stdin, tty       bool
	env              []string
	user, workingDir string
}

// NewExecCommand returns the command exec.
func NewExecCommand(o *kit.Options) *cobra.Command {
	e := &execOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use: "exec NAME [flags] -- COMMAND [ARG...]", DisableFlagsInUseLine: true,
		Short:   "Run a command in a VM",
		Example: o.FormatExamples("exec web -- uname -a", "exec -it web -- sh", "exec --user root --env LEVEL=3 web -- make"),
		Long: "Run a command in a VM, and exit with its exit code.\n" +
			"The engine runs it in a container, and Drover's program in a machine of a container image.\n" +
			"The QEMU guest agent runs it in any other machine: the guest has to run qemu-guest-agent,\n" +
			"and the command runs as root. That agent does not support --tty, --user, --env and --workdir.",
		Args: kit.RequireName(kit.WithCommand),
		RunE: func(cmd *cobra.Command, args []string) error { return e.runCommand(cmd.Context(), args[0], args[1:]) },
	})
	cmd.Flags().BoolVarP(&e.stdin, "stdin", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&e.tty, "tty", "t", false, "give the command a terminal, which the QEMU guest agent cannot do")
	cmd.Flags().StringArrayVarP(&e.env, "env", "e", nil, "environment variable of the command, may be repeated: NAME=VALUE")
	cmd.Flags().StringVarP(&e.user, "user", "u", "", "who runs the command: USER or USER:GROUP, each a name or an ID of the image. To act as another user of the kubeconfig, use --context")
	cmd.Flags().StringVarP(&e.workingDir, "workdir", "w", "", "folder in which the command begins")
	return cmd
}

func (e *execOptions) runCommand(ctx context.Context, name string, command []string) error {
	target, err := vms.FindTarget(ctx, e.Options, name, streamsapi.Exec)
	if err != nil {
		return err
	}
	ctx, cancel := printable.NewOutput(e.Out).UntilFailed(ctx) // RunCommand itself ignores failed writes
	defer cancel()
	query := url.Values{"command": command, "env": e.env, "stdout": {"true"}, "stdin": {strconv.FormatBool(e.stdin)}}
	if e.user != "" {
		query.Set("user", e.user)
	}
	if e.workingDir != "" {
		query.Set("workdir", e.workingDir)
	}
	o := remotecommand.StreamOptions{Stdout: e.Out}
	if e.stdin {
		o.Stdin = e.In
	}
	restore, err := e.prepareTerminal(ctx, &o, query)
	if err != nil {
		return err
	}
	err = target.RunCommand(ctx, query, o)
	restore()
	return target.WrapError(ctx, err)
}

// prepareTerminal requests a terminal for the command if the user wants one and has one, as kubectl
// does. Otherwise it requests a separate standard error.
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
