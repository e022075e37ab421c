// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// exitUnexplained is the exit code of explain if it cannot explain anything: there is no such VM, the
// cluster does not answer, or a flag is wrong.
const exitUnexplained = 3

type explainOptions struct {
	*kit.Options
	history bool
	output  kit.JSONFlag
}

// NewExplainCommand returns the command explain.
func NewExplainCommand(o *kit.Options) *cobra.Command {
	e := &explainOptions{Options: o}
	cmd := &cobra.Command{
		Use:        "explain NAME",
		SuggestFor: []string{"events"},
		GroupID:    kit.GroupObserve,
		Short:      "Say why a VM is not ready, and how to help",
		Long: "Say in sentences why a VM is not ready: what Drover is doing, how often that failed, when it is\n" +
			"tried again, whether the engine answers, what happened last, and how to help. For a machine also\n" +
			"what its network has carried and refused, to everyone who may get virtualmachines/interfaces.\n\n" +
			"--history shows what the controller has decided about the VM lately: when, what it saw, what\n" +
			"it decided and how each step ended. It needs the right to get virtualmachines/decisions.\n\n" +
			"The exit code is\n" +
			"  0  if the VM is as its spec says\n" +
			"  1  if it is not yet, and time may help\n" +
			"  2  if you have to act\n" +
			"  3  if nothing is known: no such VM, no answer, wrong flags\n" +
			"With --history it is 0 or 3.",
		Example: o.FormatExamples("explain web", "explain web >/dev/null && echo healthy", "explain web --history",
			"explain web --history -o json >web.json"),
		Args: func(cmd *cobra.Command, args []string) error { return asUnexplained(e.checkFlags(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.history {
				return asUnexplained(e.showHistory(cmd.Context(), args[0]))
			}
			return e.explainName(cmd.Context(), args[0])
		},

		ValidArgsFunction: vms.CompleteVM(o),
	}
	e.addFlags(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return asUnexplained(err) })
	return cmd
}

func (e *explainOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&e.history, "history", false, "show the last decisions of the controller about the VM")
	e.output.AddFlag(cmd, "output format of --history: json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
}

// checkFlags returns an error for flags that exclude each other, and for wrong arguments.
func (e *explainOptions) checkFlags(cmd *cobra.Command, args []string) error {
	switch err := e.output.Check(); {
	case err != nil:
		return err
	case e.output.IsSet() && !e.history:
		return errors.New("--output is for --history")
	}
	return kit.RequireOneName(cmd, args)
}

// asUnexplained gives an error the exit code exitUnexplained, unless it already has an exit code.
func asUnexplained(err error) error {
	var exit *kit.ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return &kit.ExitError{Code: exitUnexplained, Err: err}
}

func (e *explainOptions) explainName(ctx context.Context, arg string) error {
	vm, err := vms.FindVM(ctx, e.Options, arg)
	if err != nil {
		return asUnexplained(err)
	}
	v, err := ExplainVM(ctx, e.Options, vm)
	if err != nil {
		return asUnexplained(err)
	}
	if v != verdictHealthy {
		return &kit.ExitError{Code: int(v)}
	}
	return nil
}

// ExplainVM prints why a VM is in its state, and the steps that help.
func ExplainVM(ctx context.Context, o *kit.Options, vm *api.VirtualMachine) (Verdict, error) {
	d := newDescriber(o)
	v := d.viewOf(vm)
	v.table = nil
	v.network = readNetwork(ctx, o, vm)
	var err error
	if v.events, err = readEvents(ctx, o, vm); err != nil {
		v.eventsError = o.DescribeError(err)
	}
	return v.verdict, d.printView(o.Out, &v)
}
