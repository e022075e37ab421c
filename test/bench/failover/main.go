// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program failover measures how fast another replica of drover-controller takes over
// when the leader is stopped and when it is killed, without VMs and with many,
// beside an unmodified elector of client-go.
//
// Start with options.Run in benchmark.go. handover.go has one change of leader,
// fleet.go the replicas, plain.go the elector to compare with (this program
// again, with another verb), figures.go the figures and the aims.
//
// Everything is real processes against one drover up. Both kinds are measured from
// outside and in the same way: by a watch of the Lease, and of the VMs, in this
// process. Slowness is never an error; a failure of function is.
package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/bench"
)

// options are the flags.
type options struct {
	Runs       int             `json:"runs"`
	VMs        int             `json:"vms"`
	Replicas   int             `json:"replicas"`
	Settings   leader.Settings `json:"times"`
	AtOnce     int             `json:"-"`
	Controller string          `json:"-"`
	JSON       string          `json:"-"`
}

func main() {
	bench.Main("failover", &options{Settings: leader.Settings{
		Lease: 3 * time.Second, Renew: 1500 * time.Millisecond, Retry: 250 * time.Millisecond,
		Request: 250 * time.Millisecond, Margin: 250 * time.Millisecond,
	}}, bench.Verbs{plainVerb: plainMain})
}

// AddFlags implements bench.Benchmark.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Runs, "runs", 20, "changes of leader for each signal, kind of elector and number of VMs")
	flags.IntVar(&o.VMs, "vms", 10000, "how many VMs the second half runs with")
	flags.IntVar(&o.Replicas, "replicas", 3, "replicas of each kind, at least 2")
	flags.IntVar(&o.AtOnce, "at-once", 16, "number of VMs to create at a time")
	flags.StringVar(&o.Controller, "controller", "bin/drover-controller", "program to measure")
	flags.StringVar(&o.JSON, "json", "bin/bench/failover.json", "file for all figures")
	addTimeFlags(flags, &o.Settings)
}

// Validate implements bench.Benchmark.
func (o *options) Validate() error {
	return errors.Join(
		bench.CheckAtLeast(2, map[string]int{"replicas": o.Replicas}),
		bench.CheckAtLeast(1, map[string]int{"runs": o.Runs, "at-once": o.AtOnce}),
		bench.CheckAtLeast(0, map[string]int{"vms": o.VMs}),
		o.Settings.Validate(),
	)
}

// electionTimes are the flags of an election, without their prefix.
func electionTimes(s *leader.Settings) map[string]*time.Duration {
	return map[string]*time.Duration{
		"lease-duration": &s.Lease, "renew-deadline": &s.Renew, "retry-period": &s.Retry,
		"request-timeout": &s.Request, "margin": &s.Margin,
	}
}

func addTimeFlags(flags *pflag.FlagSet, s *leader.Settings) {
	for name, value := range electionTimes(s) {
		flags.DurationVar(value, name, *value, "as drover-controller's --leader-elect-"+name)
	}
}

// timeArgs are the settings as flags.
func timeArgs(prefix string, s leader.Settings) (args []string) {
	for name, value := range electionTimes(&s) {
		args = append(args, fmt.Sprintf("--%s%s=%s", prefix, name, value))
	}
	return args
}
