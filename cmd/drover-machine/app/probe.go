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

// probeCommand is the first argument of a program that probes the guest of another one in the
// same container.
const probeCommand = "probe"

// defaultProbe is the default of a kubelet too.
const defaultProbe = time.Second

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

// probeDescribed probes the port that the arguments name, or the one of a file, or whether the guest
// runs.
func probeDescribed(ctx context.Context, arguments []string) error {
	var o options
	flags := flag.NewFlagSet("drover-machine probe", flag.ContinueOnError)
	o.addPlaces(flags)
	within := flags.Duration("timeout", defaultProbe, "how long the guest may take to answer, or to run")
	readiness := flags.String("readiness", "", "file with port and timeoutSeconds, in YAML or JSON, in place of the arguments; if it is empty, the guest is ready")
	started := flags.Bool("started", false, "whether the guest runs, in place of a port: its disks are made and QEMU is started")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *started {
		ctx, cancel := context.WithTimeout(ctx, *within)
		defer cancel()
		return o.probeStarted(ctx, flags.NArg() > 0 || *readiness != "")
	}
	port, err := portOf(flags.Args(), *readiness, within)
	if err != nil || port == 0 {
		return err
	}
	d, err := description.Read(o.description)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()
	return newRun(d, o, logr.Discard()).probePort(ctx, port)
}

// startedPeriod is how often probeStarted looks.
const startedPeriod = 50 * time.Millisecond

// probeStarted waits until the guest runs. That costs a node which starts many machines less than to execute
// the program again and again.
func (o *options) probeStarted(ctx context.Context, hasPort bool) error {
	if hasPort {
		return errors.New("with -started there must be no port and no -readiness")
	}
	ticker := time.NewTicker(startedPeriod)
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

// portOf returns the port to probe, 0 if the file asks for none. The file has the time as well.
func portOf(arguments []string, file string, within *time.Duration) (int32, error) {
	if file == "" {
		if len(arguments) == 1 {
			if port, err := strconv.ParseUint(arguments[0], 10, 16); err == nil && port > 0 {
				return int32(port), nil
			}
		}
		return 0, fmt.Errorf("the arguments are %q: there must be one, a TCP port of the guest", arguments)
	}
	if len(arguments) > 0 {
		return 0, fmt.Errorf("the arguments are %q: with -readiness there must be none", arguments)
	}
	r, err := description.ReadReadiness(file)
	if err != nil || r == nil {
		return 0, err
	}
	*within = time.Duration(r.TimeoutSeconds) * time.Second
	return r.Port, nil
}
