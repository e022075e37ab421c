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

// Benchmark is what a program measures, by its flags.
type Benchmark interface {
	AddFlags(flags *pflag.FlagSet)
	Validate() error
	Run(ctx context.Context) error
}

// Verbs are what the program does in place of the benchmark if one is its first argument.
type Verbs map[string]func(ctx context.Context, args []string) error

// Main runs a benchmark with its arguments until it ends or is interrupted.
func Main(name string, b Benchmark, verbs Verbs) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runMain(ctx, name, os.Args[1:], b, verbs)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func runMain(ctx context.Context, name string, args []string, b Benchmark, verbs Verbs) error {
	if len(args) > 0 && verbs[args[0]] != nil {
		return verbs[args[0]](ctx, args[1:])
	}
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	b.AddFlags(flags)
	if err := errors.Join(flags.Parse(args), b.Validate()); err != nil {
		return err
	}
	return b.Run(ctx)
}

// CheckAtLeast checks that flags are not smaller than a limit.
func CheckAtLeast(least int, values map[string]int) (err error) {
	for flag, n := range values {
		if n < least {
			err = errors.Join(err, fmt.Errorf("--%s is %d: it must be at least %d", flag, n, least))
		}
	}
	return err
}

// Logf reports progress on stderr.
func Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// Contender is one of the compared programs.
type Contender func(turn int) error

// TakeTurns runs all of them the same number of times. The order changes, so that
// what one leaves behind affects all.
func TakeTurns(turns int, contenders ...Contender) error {
	for turn := range turns {
		for n := range contenders {
			if err := contenders[(turn+n)%len(contenders)](turn); err != nil {
				return fmt.Errorf("turn %d: %w", turn+1, err)
			}
		}
	}
	return nil
}
