// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Main runs a benchmark with its arguments until it ends or is interrupted.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Logf reports progress on stderr.
func Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// Options are a benchmark's flags.
type Options interface {
	AddFlags(flags *pflag.FlagSet)
	Validate() error
}

// Parse sets options by their flags.
func Parse(name string, args []string, o Options) error {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	return o.Validate()
}

// Verdict returns the word for whether an aim was met.
func Verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}
