// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/rand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/change"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/image/source"
)

// exitRunFailed is the exit code of run if the exit code of the VM is unknown, or if input or output may be missing.
// It is the same as in docker run.
const exitRunFailed = 125

// runOptions are the flags of run.
type runOptions struct {
	createOptions
	remove bool
}

// NewRunCommand returns the command run.
func NewRunCommand(o *kit.Options) *cobra.Command {
	r := &runOptions{createOptions: createOptions{Options: o}}
	cmd := &cobra.Command{
		Use: "run [NAME] [flags] [-- ARG...]", DisableFlagsInUseLine: true,
		GroupID: kit.GroupLifecycle,
		Short:   "Run a VM for one job, print what it prints, and exit with its exit code",
		Long: "Create a VM for one job, print what it prints until it ends, and exit with its exit code: 128 and\n" +
			"the number of the signal if one ended it, 125 if it was not run or its end is not known.\n\n" +
			"Arguments after -- are passed to the image's entrypoint or, with --command, replace it.\n" +
			"-i passes standard input on, and -it makes this terminal the command's: Ctrl-C reaches the command then,\n" +
			"and Ctrl-] leaves.\n\n" +
			"The VM is kept, and is not started again, unless --rm deletes it. After Ctrl-C or Ctrl-] it runs on\n" +
			"without --rm, and is deleted with it; another Ctrl-C does not wait for that.",
		Example: o.FormatExamples("run --rm --image python:3.13 -- python -c 'print(1)'", "run job --image busybox:1.37 --command -- sh -c 'exit 3'",
			"run -it --rm --image busybox:1.37 -- sh"),
		Args: runArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if dash := cmd.ArgsLenAtDash(); dash == 1 || (dash < 0 && len(args) == 1) {
				name, args = args[0], args[1:]
			}
			r.flags.Args = args
			return r.runVM(cmd.Context(), name)
		},

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	r.flags.AddFlags(cmd)
	cmd.Flags().BoolVar(&r.remove, "rm", false, "delete the VM with its data at the end, also after Ctrl-C")
	cmd.Flags().DurationVar(&r.timeout, "timeout", vms.DefaultWait, "how long to wait until the VM runs; 0 means no limit")
	return cmd
}

// runArgs checks the arguments: an optional name, and words after --.
func runArgs(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 1:
		return fmt.Errorf("put -- before the arguments: %s %s -- %s", cmd.CommandPath(), args[0], strings.Join(args[1:], " "))
	case dash > 1:
		return fmt.Errorf("%q is not expected: give at most one NAME before --", args[1])
	}
	return nil
}

// checkFlags returns an error for flags that are unsupported, missing, or contradict each other.
func (r *runOptions) checkFlags() error {
	if r.flags.TTY && r.flags.Stdin && streams.OpenInput(r.In) == nil {
		return errors.New("--tty with --stdin needs a terminal as standard input: leave --tty out to pass on a pipe or a file")
	}
	return r.flags.Check()
}

func (r *runOptions) runVM(ctx context.Context, arg string) error {
	if arg == "" {
		arg = generateName(r.flags.Image)
	}
	name, err := vms.ParseName(arg)
	if err := errors.Join(err, r.checkFlags()); err != nil {
		return err
	}
	r.flags.RestartPolicy = string(api.RestartNever)
	wanted, secret, err := r.prepareObjects(ctx, name)
	if err != nil {
		return err
	}
	if err := r.checkStreams(ctx); err != nil {
		return err
	}
	vm, err := r.createObjects(context.WithoutCancel(ctx), wanted, secret) // without this, Ctrl-C could hide that the VM was created
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(r.ErrOut, "%s created\n", vms.QualifiedName(vm.Name))
	err = r.followVM(ctx, vm)
	hasLeft := errors.Is(err, errLeft)
	if hasLeft {
		err = nil
	}
	if r.remove {
		return removeVM(ctx, r.Options, vm, err)
	}
	if hasLeft {
		_, _ = fmt.Fprintf(r.ErrOut, "%s runs on. To return to it: %s console %s. To delete it: %s delete %s\n", vm.Name, r.Program, vm.Name, r.Program, vm.Name)
	}
	if errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintf(r.ErrOut, "%s is kept. What it prints: %s logs -f %s. To delete it: %s delete %s\n", vm.Name, r.Program, vm.Name, r.Program, vm.Name)
	}
	return err
}

// checkStreams returns an error if logs cannot be read, before run creates anything. It does not check for
// driver pod, since the API server may serve the logs of pods.
func (r *runOptions) checkStreams(ctx context.Context) error {
	config, err := r.RESTConfig()
	if err != nil || r.flags.Driver == vms.DriverPod {
		return err
	}
	_, err = streams.Discover(ctx, config)
	return err
}

// followVM prints the output of a VM until the VM has ended, and returns its exit code as an error.
func (r *runOptions) followVM(ctx context.Context, vm *api.VirtualMachine) (err error) {
	ctx, stop := printable.NewOutput(r.Out).UntilReaderCloses(ctx)
	defer stop()
	ctx, input := r.newInput(ctx)
	defer func() { err = input.stop(err) }()
	log := &jobLog{Options: r.Options, vm: vm.Name}
	for first := true; ; first = false {
		seen, err := r.awaitGoal(ctx, vm, whenRun(vm.Generation, log.run))
		if err != nil {
			return asNotRun(err)
		}
		r.timeout = 0 // --timeout is only for the first start
		if first && !hasEnded(seen) {
			input.start(ctx, vm.Name)
		}
		if run := runOf(seen); first || run != log.run {
			log.run = run
			if err := log.printLog(ctx); err != nil {
				return err
			}
		}
		if hasEnded(seen) {
			return errors.Join(log.printMissing(ctx), exitError(seen))
		}
	}
}

// asNotRun gives an error the exit code for a VM that did not run, or whose exit code is unknown.
func asNotRun(err error) error {
	exit := (*kit.ExitError)(nil)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &exit):
		return &kit.ExitError{Code: exitRunFailed, Err: exit.Err}
	}
	return &kit.ExitError{Code: exitRunFailed, Err: err}
}

// exitError returns the exit code of a VM as an error. If something other than the guest ended the VM, the
// error says what.
func exitError(vm *api.VirtualMachine) error {
	end := vm.Status.Server.Terminated
	if end.ExitCode == 0 {
		return nil
	}
	exit := &kit.ExitError{Code: int(end.ExitCode)}
	if exit.Code < 0 || exit.Code > 255 {
		exit.Code = 1
	}
	switch {
	case end.Message != "":
		exit.Err = fmt.Errorf("%s: %s", vm.Name, printable.Line(end.Message))
	case end.Reason != "" && end.Reason != "Error":
		exit.Err = fmt.Errorf("%s ended with code %d (%s)", vm.Name, end.ExitCode, end.Reason)
	}
	return exit
}

// removeVM deletes the VM, waits until it is gone, and returns jobErr, the error with which the job has
// ended. It also deletes the VM after Ctrl-C has ended ctx. Another Ctrl-C ends the program.
func removeVM(ctx context.Context, o *kit.Options, vm *api.VirtualMachine, jobErr error) error {
	err := change.DeleteVM(context.WithoutCancel(ctx), o.WithOutput(o.ErrOut), vm)
	switch {
	case err == nil:
		return jobErr
	case jobErr == nil:
		return err
	}
	o.PrintWarning(o.DescribeError(err)) // the error of the job is more important
	return jobErr
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// generateName returns a new name for a VM with an image, such as python-x7k2p.
func generateName(image string) string {
	from := source.Parse(image)
	if u, err := url.Parse(from.Name); err == nil && from.Kind == source.Web && u.Path != "" {
		from.Name = u.Path // without a query
	}
	base, _, _ := strings.Cut(path.Base(from.Name), "@")
	base, _, _ = strings.Cut(base, ":")
	base = strings.Trim(notInNames.ReplaceAllString(strings.ToLower(base), "-"), "-")
	if base == "" {
		base = "vm"
	}
	return base[:min(len(base), 40)] + "-" + rand.String(5)
}
