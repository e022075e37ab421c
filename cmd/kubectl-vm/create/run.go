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

// exitNotRun is the exit code of run if the exit code of the VM is not known, as in docker run.
const exitNotRun = 125

// runOptions are the flags of run.
type runOptions struct {
	createOptions
	remove     bool
	stdin, tty bool
}

// NewRunCommand returns the verb run.
func NewRunCommand(o *kit.Options) *cobra.Command {
	r := &runOptions{createOptions: createOptions{Options: o}}
	cmd := &cobra.Command{
		Use: "run [NAME] --image IMAGE [flags] [-- ARG...]", DisableFlagsInUseLine: true,
		GroupID: kit.GroupLifecycle,
		Short:   "Run a VM for one job, print what it prints, and exit with its exit code",
		Long: "Create a VM for one job, print what it prints until it ends, and exit with its exit code: 128 and\n" +
			"the number of the signal if one ended it, 125 if it was not run or its end is not known.\n\n" +
			"What follows -- are arguments for the image's entrypoint, or with --command what runs in its place.\n" +
			"The VM is kept, and is not started again, unless --rm deletes it. After Ctrl-C it runs on without\n" +
			"--rm, and is deleted with it; another Ctrl-C does not wait for that.",
		Example: o.FormatExamples("run --rm --image python:3.13 -- python -c 'print(1)'", "run job --image busybox:1.37 --command -- sh -c 'exit 3'"),
		Args:    runArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if dash := cmd.ArgsLenAtDash(); dash == 1 || (dash < 0 && len(args) == 1) {
				name, args = args[0], args[1:]
			}
			r.flags.Words = args
			return r.runVM(cmd.Context(), name)
		},

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	r.flags.AddFlags(cmd)
	cmd.Flags().BoolVar(&r.remove, "rm", false, "delete the VM with its data at the end, also after Ctrl-C")
	cmd.Flags().DurationVar(&r.timeout, "timeout", vms.DefaultWait, "how long to wait until the VM runs, 0 without an end")
	cmd.Flags().BoolVarP(&r.stdin, "stdin", "i", false, "not supported")
	cmd.Flags().BoolVarP(&r.tty, "tty", "t", false, "not supported")
	_, _ = cmd.Flags().MarkHidden("stdin"), cmd.Flags().MarkHidden("tty")
	return cmd
}

// runArgs checks the arguments: a name perhaps, and words behind dashes.
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

// checkFlags finds what contradicts itself, or is not there.
func (r *runOptions) checkFlags() error {
	switch {
	case r.stdin || r.tty:
		return fmt.Errorf("run passes no input on, and gives no terminal: start the VM by %s create, and use exec -it or console", r.Program)
	case r.flags.Image == "":
		return errors.New("--image is required: what the VM runs")
	}
	return r.flags.Check()
}

func (r *runOptions) runVM(ctx context.Context, arg string) error {
	if arg == "" {
		arg = nameFor(r.flags.Image)
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
	vm, err := r.createObjects(context.WithoutCancel(ctx), wanted, secret) // after Ctrl-C it is known what was created
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(r.ErrOut, "%s created\n", vms.QualifiedName(vm.Name))
	err = r.followVM(ctx, vm)
	if r.remove {
		return removeVM(ctx, r.Options, vm, err)
	}
	if errors.Is(err, context.Canceled) {
		_, _ = fmt.Fprintf(r.ErrOut, "%s is kept. What it prints: %s logs -f %s. To delete it: %s delete %s\n", vm.Name, r.Program, vm.Name, r.Program, vm.Name)
	}
	return err
}

// checkStreams fails where logs cannot be read, before anything is created for nothing. Those of driver
// pod may be served by the API server.
func (r *runOptions) checkStreams(ctx context.Context) error {
	config, err := r.RESTConfig()
	if err != nil || r.flags.Driver == vms.DriverPod {
		return err
	}
	_, err = streams.Discover(ctx, config)
	return err
}

// followVM prints what a VM prints until it has ended, and returns its exit code as an error.
func (r *runOptions) followVM(ctx context.Context, vm *api.VirtualMachine) error {
	ctx, stop := printable.NewOutput(r.Out).WhileRead(ctx)
	defer stop()
	log := &jobLog{Options: r.Options, vm: vm.Name}
	for first := true; ; first = false {
		seen, err := r.awaitGoal(ctx, vm, whenRun(vm.Generation, log.run))
		if err != nil {
			return asNotRun(err)
		}
		r.timeout = 0 // it has run
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

// asNotRun returns the error of a VM that was not run, or whose end is not known.
func asNotRun(err error) error {
	exit := (*kit.ExitError)(nil)
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &exit):
		return &kit.ExitError{Code: exitNotRun, Err: exit.Err}
	}
	return &kit.ExitError{Code: exitNotRun, Err: err}
}

// exitError returns the exit code of a VM as an error, and says what ended it if that was not the guest.
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

// removeVM deletes the VM with the user's rights, waits until it is gone, and returns the error with
// which the job has ended. Ctrl-C has ended ctx then, and another one ends the program.
func removeVM(ctx context.Context, o *kit.Options, vm *api.VirtualMachine, ended error) error {
	err := change.DeleteVM(context.WithoutCancel(ctx), o.WithOutput(o.ErrOut), vm)
	switch {
	case err == nil:
		return ended
	case ended == nil:
		return err
	}
	o.PrintWarning(o.DescribeError(err)) // the end of the job counts more
	return ended
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameFor returns a new name for a VM of an image, such as python-x7k2p.
func nameFor(image string) string {
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
