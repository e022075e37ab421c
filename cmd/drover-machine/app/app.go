// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the program drover-machine. In a container it runs one QEMU machine as its child,
// until the guest has ended. It knows nothing of Kubernetes.
//
// Start with Main. Package description has the configuration file. disk.go makes the disks, and
// image.go copies or downloads their images. run.go starts QEMU, and package supervisor follows it.
// control.go serves the control port, network.go opens the network, and probe.go is a separate
// process that probes the guest. end.go has the exit codes, console.go connects the guest's serial
// console to the standard streams, and reap.go waits for orphans as a container's first process.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/cmd/signals"
	"cloudnative.tw/drover/internal/machine/broker"
	"cloudnative.tw/drover/internal/machine/converter"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// Version is the version of this program.
var Version = "dev"

// options are the flags, and settings from the environment.
type options struct {
	description string
	runFolder   string
	termination string
	version     bool
	// nodeAddresses are the addresses of the pod's node.
	nodeAddresses []netip.Prefix
}

func parseOptions(arguments []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("drover-machine", flag.ContinueOnError)
	o.addPathFlags(flags)
	flags.StringVar(&o.termination, "termination-message", "/dev/termination-log", "file that gets, as JSON, why the program has ended")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: drover-machine accepts only flags", flags.Arg(0))
	}
	var err error
	o.nodeAddresses, err = parseNodeAddresses(os.Getenv(description.NodeAddresses))
	return o, err
}

// addPathFlags adds the flags that all modes of the program share.
func (o *options) addPathFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.description, "description", "/etc/drover-machine/machine.yaml", "file that describes the machine, in YAML or JSON")
	flags.StringVar(&o.runFolder, "run-folder", "/run/drover-machine", "folder for sockets and temporary files, which must be writable")
}

// processName is the name of the process in tools such as top. Without it they would show the number of the
// descriptor through which a driver executes the program.
var processName = append([]byte(installation.ProgramName), 0)

// Main runs the machine that the flags describe, or a command of the program, and returns the exit
// code.
func Main(arguments []string) int {
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&processName[0])), 0, 0, 0) //nolint:gosec // a system call
	switch {
	case len(arguments) > 0 && arguments[0] == probeCommand:
		return mainProbe(arguments[1:])
	case len(arguments) > 0 && arguments[0] == supervisor.FollowCommand:
		return supervisor.MainOnHost(context.Background(), openNetwork)
	case len(arguments) > 0 && arguments[0] == broker.Command:
		return broker.Main(context.Background(), arguments[1:])
	case len(arguments) > 0 && arguments[0] == converter.Command:
		return converter.Main(arguments[1:])
	}
	o, err := parseOptions(arguments)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case o.version:
		fmt.Println("drover-machine", Version)
		return 0
	}
	stops := make(chan os.Signal, 2)
	signal.Notify(stops, syscall.SIGTERM, os.Interrupt)
	// The guest goes on when readers of the console or of the log leave.
	signals.SurviveSIGPIPE()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // not signal.Ignore, which QEMU would inherit
	logOutput := newOutputBuffer(os.Stderr)
	log := logr.FromSlogHandler(slog.NewTextHandler(logOutput, nil))
	finished := end{Reason: endInvalid, Message: fmt.Sprint(err)}
	var drained []<-chan struct{}
	if err == nil {
		finished, drained = runDescribed(context.Background(), o, stops, log)
	}
	// Before the output is drained: its readers may be slow, and SIGKILL may follow soon.
	err = finished.writeMessage(o.termination)
	log.Info("Machine has ended", "reason", finished.Reason, "message", finished.Message)
	if err != nil {
		log.Error(err, "Termination message could not be written")
	}
	logOutput.closeOutput()
	waitDrained(append(drained, logOutput.done))
	return finished.code()
}

// runDescribed runs the machine of the description until it has ended. The channels drained are closed once
// all output of the guest was read.
func runDescribed(ctx context.Context, o options, stops <-chan os.Signal, log logr.Logger) (finished end, drained []<-chan struct{}) {
	d, err := description.Read(o.description)
	if err != nil {
		return end{Reason: endInvalid, Message: err.Error()}, nil
	}
	r := newRun(d, o, log)
	if err := r.newSupervisor(ctx); err != nil {
		return end{Reason: endNotStarted, Message: err.Error()}, nil
	}
	finished, err = r.runMachine(ctx, stops)
	if err != nil {
		finished = end{Reason: endNotStarted, Message: err.Error()}
		finished.TooLarge, _ = errors.AsType[*imageSizeError](err)
	}
	finished.StopRequested, finished.Disks = r.supervisor.IsStopping(), r.found.allDisks()
	if r.output != nil {
		drained = append(drained, r.output.done, r.supervisor.ConsoleLeft())
	}
	return finished, drained
}
