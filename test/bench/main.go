// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/test/assert"
)

// bigVMs is the number of VMs above which there are at most two turns, since each takes minutes.
const bigVMs = 1000

// Suite is a benchmark.
type Suite struct {
	Name string
	// Turns is how often compared programs take turns, and VMs the numbers of VMs. Flags can change
	// both.
	Turns int
	VMs   []int
	// Measure adds rows to the report.
	Measure func(context.Context, *Report) error
}

// Main runs the suites that the program's arguments name, until they end or are interrupted. If
// the first argument is the name of a floor, it runs the floor.
func Main(suites []Suite, floors map[string]Floor) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := runMain(ctx, os.Args[1:], suites, floors)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func runMain(ctx context.Context, args []string, suites []Suite, floors map[string]Floor) error {
	if len(args) > 1 && floors[args[0]] != nil {
		return floors[args[0]].run(ctx, args[1], args[2:])
	}
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	turns := flags.Int("turns", 0, "how often compared programs take turns; replaces the number of each suite")
	vms := flags.IntSlice("vms", nil, "numbers of VMs, in rising order; replaces the numbers of each suite")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := chooseSuites(suites, flags.Args())
	if err != nil {
		return err
	}
	for n, s := range chosen {
		if flags.Changed("turns") {
			chosen[n].Turns = *turns
		}
		if flags.Changed("vms") && s.VMs != nil {
			chosen[n].VMs = *vms
		}
		if err := chosen[n].validate(s); err != nil {
			return err
		}
	}
	for _, s := range chosen {
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("suite %s: %w", s.Name, err)
		}
	}
	return nil
}

// chooseSuites returns the suites with the given names, in the order of suites.
func chooseSuites(suites []Suite, names []string) (chosen []Suite, err error) {
	var known []string
	for _, s := range suites {
		known = append(known, s.Name)
		if slices.Contains(names, s.Name) {
			chosen = append(chosen, s)
		}
	}
	if len(names) == 0 || len(chosen) < len(names) {
		return nil, fmt.Errorf("the suites are %q: they must be some of %s, each once", names, strings.Join(known, ", "))
	}
	return chosen, nil
}

// validate checks a suite with the values of flags, given the suite without flags.
func (s Suite) validate(original Suite) error {
	if s.Turns < 1 {
		return fmt.Errorf("--turns is %d: it must be at least 1", s.Turns)
	}
	if original.VMs == nil {
		return nil
	}
	least := min(original.VMs[0], 1)
	return assert.ErrorUnless(len(s.VMs) != 0 && s.VMs[0] >= least && slices.IsSorted(s.VMs),
		"--vms is %v: it must be rising numbers, for suite %s from %d", s.VMs, s.Name, least)
}

func (s Suite) run(ctx context.Context) error {
	begin := time.Now()
	r := NewReport()
	r.Turns, r.Sizes = s.Turns, s.VMs
	if err := s.Measure(ctx, r); err != nil {
		return err
	}
	Logf("Suite %s took %s", s.Name, time.Since(begin).Round(time.Second))
	fmt.Println(r)
	return r.write("bin/bench/" + s.Name + ".json")
}

// Logf reports progress on stderr.
func Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// TurnsWith returns the number of turns with a number of VMs.
func (r *Report) TurnsWith(vms int) int {
	if vms > bigVMs {
		return min(r.Turns, 2)
	}
	return r.Turns
}

// Contender is a turn of one of the compared programs.
type Contender func(turn int) error

// TakeTurns runs all contenders the same number of times. The order rotates, so that the
// after-effects of one affect all others.
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
