// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/description"
)

// probeCommand is the first argument of a process that probes the guest, in the same container as
// the process that runs the machine.
const probeCommand = "probe"

// defaultTimeout is the same as a kubelet's default.
const defaultTimeout = time.Second

// mainProbe probes a port of the guest, and returns the exit code of the program.
func mainProbe(arguments []string) int {
	err := probeDescribed(context.Background(), arguments)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	}
	fmt.Fprintln(os.Stderr, "drover-machine probe:", err)
	return 1
}

// probeDescribed probes the port that the arguments or a readiness file name, or checks whether the
// guest runs.
func probeDescribed(ctx context.Context, arguments []string) error {
	var o options
	flags := flag.NewFlagSet("drover-machine probe", flag.ContinueOnError)
	o.addPathFlags(flags)
	timeout := flags.Duration("timeout", defaultTimeout, "how long the guest may take to answer, or to run")
	readiness := flags.String("readiness", "", "file with port and timeoutSeconds, in YAML or JSON, in place of the arguments; if it is empty, the guest is ready")
	started := flags.Bool("started", false, "whether the guest runs, in place of a port: its disks are made and QEMU is started")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *started {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		return o.waitStarted(ctx, flags.NArg() > 0 || *readiness != "")
	}
	port, err := findPort(flags.Args(), *readiness, timeout)
	if err != nil || port == 0 {
		return err
	}
	d, err := description.Read(o.description)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	return newRun(d, o, logr.Discard()).probePort(ctx, port)
}

// startedInterval is the interval between two checks of waitStarted.
const startedInterval = 50 * time.Millisecond

// waitStarted waits until the guest runs. For a node that starts many machines, one waiting process is cheaper than
// a kubelet that executes the probe repeatedly.
func (o *options) waitStarted(ctx context.Context, hasPort bool) error {
	if hasPort {
		return errors.New("-started excludes a port and -readiness")
	}
	ticker := time.NewTicker(startedInterval)
	defer ticker.Stop()
	for {
		_, err := os.Stat((&run{options: *o}).startedFile())
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("the guest does not run yet")
		}
	}
}

// findPort returns the port to probe, 0 if the readiness file is empty. The file also sets timeout.
func findPort(arguments []string, file string, timeout *time.Duration) (int32, error) {
	if file == "" {
		if len(arguments) == 1 {
			if port, err := strconv.ParseUint(arguments[0], 10, 16); err == nil && port > 0 {
				return int32(port), nil
			}
		}
		return 0, fmt.Errorf("the arguments are %q, and must be one TCP port of the guest", arguments)
	}
	if len(arguments) > 0 {
		return 0, fmt.Errorf("the arguments are %q: -readiness excludes arguments", arguments)
	}
	r, err := description.ReadReadiness(file)
	if err != nil || r == nil {
		return 0, err
	}
	*timeout = time.Duration(r.TimeoutSeconds) * time.Second
	return r.Port, nil
}
