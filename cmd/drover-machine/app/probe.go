// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
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

// probeDescribed probes the port that the arguments name.
func probeDescribed(ctx context.Context, arguments []string) error {
	var o options
	flags := flag.NewFlagSet("drover-machine probe", flag.ContinueOnError)
	o.addPlaces(flags)
	within := flags.Duration("timeout", defaultProbe, "how long the guest may take to answer")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	port, err := strconv.ParseUint(flags.Arg(0), 10, 16)
	if err != nil || flags.NArg() != 1 {
		return fmt.Errorf("the arguments are %q: there must be one, a TCP port of the guest", flags.Args())
	}
	d, err := description.Read(o.description)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()
	return newRun(d, o, logr.Discard()).probe(ctx, int32(port))
}
