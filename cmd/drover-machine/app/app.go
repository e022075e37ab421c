// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app runs one QEMU machine as its child, for as long as its guest runs: what a
// container needs to be a virtual machine. It knows nothing of Kubernetes.
//
// Start with Main. Package description describes a machine. disk.go makes its disks and
// image.go copies or fetches the images that they begin with; run.go starts QEMU as a child, and
// package supervisor follows that until the guest has ended. control.go lets others control the
// machine meanwhile, and probe.go asks its guest in a separate process. end.go has the exit codes,
// console.go leads the guest's serial console to the standard streams, and reap.go does the duty
// of a container's first process.
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

// options are the flags, and the settings of the environment.
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
	o.addPlaces(flags)
	flags.StringVar(&o.termination, "termination-message", "/dev/termination-log", "file that gets, as JSON, why the program has ended")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: only flags are taken", flags.Arg(0))
	}
	var err error
	o.nodeAddresses, err = parseNodeAddresses(os.Getenv(description.NodeAddresses))
	return o, err
}

// addPlaces adds the flags that name where the machine is.
func (o *options) addPlaces(flags *flag.FlagSet) {
	flags.StringVar(&o.description, "description", "/etc/drover-machine/machine.yaml", "file that describes the machine, in YAML or JSON")
	flags.StringVar(&o.runFolder, "run-folder", "/run/drover-machine", "folder for sockets and temporary files, which must be writable")
}

// processName is the name of the program in tools such as top: drivers execute it by a descriptor.
var processName = append([]byte(installation.ProgramName), 0)

// Main runs the machine that the flags name, or does another work of the program for one, and
// returns the exit code of the program.
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
	// Readers of the console and of the log may go, and the guest runs on.
	signals.OutliveReaders()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // to ignore it would make QEMU ignore it
	lines := newOutput(os.Stderr)
	log := logr.FromSlogHandler(slog.NewTextHandler(lines, nil))
	finished, unread := end{Reason: endInvalid, Message: fmt.Sprint(err)}, []<-chan struct{}(nil)
	if err == nil {
		finished, unread = runDescribed(context.Background(), o, stops, log)
	}
	// First of all: who reads the streams may be slow, and SIGKILL may be near.
	err = finished.writeMessage(o.termination)
	log.Info("Machine has ended", "reason", finished.Reason, "message", finished.Message)
	if err != nil {
		log.Error(err, "Termination message could not be written")
	}
	lines.closeOutput()
	drainOutput(append(unread, lines.done))
	return finished.code()
}

// runDescribed runs the machine of the description until it has ended. It also returns what is closed
// once all was read that the guest has printed.
func runDescribed(ctx context.Context, o options, stops <-chan os.Signal, log logr.Logger) (finished end, unread []<-chan struct{}) {
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
		unread = append(unread, r.output.done, r.supervisor.ConsoleLeft())
	}
	return finished, unread
}
