// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program perf measures how fast Drover is and what it costs, beside floors: what
// the same machine takes, in the same run, for the part that every controller must
// do.
//
// Start with the table suites in suites.go: each suite has a file of its own. The floors are in noop.go
// and engine.go.
//
// Everything is real: bin/drover up --without-controller, bin/drover-controller as a
// separate process, and a Docker engine. The compared programs take turns. Slowness
// is never an error; a failure of function is.
package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/test/bench"
)

// options are the flags.
type options struct {
	Suites      []string      `json:"suites"`
	Sizes       []int         `json:"sizes"`
	Runs        int           `json:"runs"`
	Pairs       int           `json:"pairs"`
	BigPairs    int           `json:"bigPairs"`
	DockerPairs int           `json:"dockerPairs"`
	Barest      bool          `json:"barest"`
	Samples     int           `json:"samples"`
	DockerVMs   int           `json:"dockerVMs"`
	Rest        time.Duration `json:"restNanoseconds"`
	AtOnce      int           `json:"atOnce"`
	Burst       int           `json:"burst"`
	Flags       []string      `json:"flags,omitempty"`
	Controller  string        `json:"-"`
	JSON        string        `json:"-"`
	Keep        bool          `json:"-"`
}

func main() { bench.Main("perf", &options{}, floors) }

// AddFlags implements bench.Benchmark.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&o.Suites, "suites", defaultSuites(), "suites to run; known are "+strings.Join(suiteNames(), ", "))
	flags.IntSliceVar(&o.Sizes, "sizes", []int{1, 100, 1000}, "numbers of VMs, of the fake driver, in rising order")
	flags.IntVar(&o.Runs, "runs", 5, "how often to measure starts, a slow engine, and figures without a floor")
	flags.IntVar(&o.Pairs, "pairs", 10, "number of turns of compared programs")
	flags.IntVar(&o.BigPairs, "big-pairs", 10, "the same with more than 1,000 VMs")
	flags.IntVar(&o.DockerPairs, "docker-pairs", 10, "the same with --docker-vms containers")
	flags.BoolVar(&o.Barest, "barest", true, "measure beside the barest floor too")
	flags.IntVar(&o.Samples, "samples", 40, "new VMs, one after the other, for percentiles")
	flags.IntVar(&o.DockerVMs, "docker-vms", 100, "number of VMs on the Docker engine")
	flags.DurationVar(&o.Rest, "rest", time.Minute, "how long to measure VMs at rest")
	flags.IntVar(&o.AtOnce, "at-once", 16, "number of parallel requests of users")
	flags.IntVar(&o.Burst, "burst", 10000, "number of VMs that drover up creates and deletes while its memory is measured")
	flags.StringArrayVar(&o.Flags, "flag", nil, "further flag of drover-controller")
	flags.StringVar(&o.Controller, "controller", "bin/drover-controller", "program to measure")
	flags.StringVar(&o.JSON, "json", "bin/bench/perf.json", "file for all figures")
	flags.BoolVar(&o.Keep, "keep", false, "keep figures in the file that this run does not measure")
}

// Validate implements bench.Benchmark.
func (o *options) Validate() error {
	for _, name := range o.Suites {
		if !slices.Contains(suiteNames(), name) {
			return fmt.Errorf("--suites has %q: it must be among %s", name, strings.Join(suiteNames(), ", "))
		}
	}
	if len(o.Sizes) == 0 || o.Sizes[0] < 1 || !slices.IsSorted(o.Sizes) {
		return fmt.Errorf("--sizes is %v: it must be rising numbers from 1", o.Sizes)
	}
	return bench.CheckAtLeast(1, map[string]int{
		"runs": o.Runs, "pairs": o.Pairs, "big-pairs": o.BigPairs, "docker-pairs": o.DockerPairs, "samples": o.Samples,
		"docker-vms": o.DockerVMs, "at-once": o.AtOnce, "burst": o.Burst,
	})
}
