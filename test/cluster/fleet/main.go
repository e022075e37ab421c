// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program fleet measures driver pod on a cluster of many nodes: kube-apiserver, scheduler
// and controller manager are real, and kwok simulates the kubelets of all nodes but one.
//
// Start with options.Run. environment.go starts the cluster, measure.go measures, and
// stages.yaml tells kwok what the simulated kubelets do. Slowness is never an error; a failure
// of function is.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/test/bench"
)

// options are the flags.
type options struct {
	Nodes      int           `json:"nodes"`
	VMs        []int         `json:"vms"`
	More       int           `json:"more"`
	Rest       time.Duration `json:"restNanoseconds"`
	Flags      []string      `json:"flags,omitempty"`
	Kwok       string        `json:"-"`
	Controller string        `json:"-"`
	Drover     string        `json:"-"`
	CRDs       string        `json:"-"`
	JSON       string        `json:"-"`
}

func main() {
	bench.Main("fleet", &options{}, bench.Verbs{floorName: bench.Floor(runInformers).Verb})
}

// AddFlags implements bench.Benchmark.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Nodes, "nodes", 1000, "how many nodes there are")
	flags.IntSliceVar(&o.VMs, "vms", []int{1000, 10000}, "how many VMs there are, round by round")
	flags.IntVar(&o.More, "more", 20, "how often one more VM is created")
	flags.DurationVar(&o.Rest, "rest", time.Minute, "how long writes at rest are counted")
	flags.StringArrayVar(&o.Flags, "flag", nil, "further flag of drover-controller")
	flags.StringVar(&o.Kwok, "kwok", "", "program kwok")
	flags.StringVar(&o.Controller, "controller", "", "program drover-controller")
	flags.StringVar(&o.Drover, "drover", "", "program drover, for its kubectl")
	flags.StringVar(&o.CRDs, "crds", "", "kustomization of the CRDs")
	flags.StringVar(&o.JSON, "json", "bin/bench/fleet.json", "file for all figures")
}

// Validate implements bench.Benchmark.
func (o *options) Validate() error {
	err := bench.CheckAtLeast(1, map[string]int{"nodes": o.Nodes, "more": o.More})
	if len(o.VMs) == 0 || slices.Min(o.VMs) < 1 {
		err = errors.Join(err, fmt.Errorf("--vms is %v: it must be numbers from 1", o.VMs))
	}
	for flag, path := range map[string]string{"kwok": o.Kwok, "controller": o.Controller, "drover": o.Drover, "crds": o.CRDs} {
		if _, statErr := os.Stat(path); statErr != nil {
			err = errors.Join(err, fmt.Errorf("--%s: %w", flag, statErr))
		}
	}
	return err
}
