// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program fleet measures driver pod on a cluster of many nodes: kube-apiserver, scheduler
// and controller manager are real, and kwok simulates the kubelets of all nodes but one.
//
// Start with run. It measures, for each number of VMs, their creation and deletion beside
// those of bare pods, the writes of both, what one more VM takes, what is written at rest,
// and the memory of the controller beside that of two bare informers. environment.go starts
// the cluster, measure.go measures, floor.go has the informers, and stages.yaml tells kwok
// what the simulated kubelets do. Slowness is never an error; a failure of function is.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
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
	Kwok       string        `json:"-"`
	Controller string        `json:"-"`
	Drover     string        `json:"-"`
	Pprof      string        `json:"-"`
	CRDs       string        `json:"-"`
	JSON       string        `json:"-"`
}

func main() {
	bench.Main("fleet", func(ctx context.Context, args []string) error {
		if len(args) == 2 && args[0] == floorName {
			return runFloor(ctx, args[1])
		}
		o := options{}
		if err := bench.Parse("fleet", args, &o); err != nil {
			return err
		}
		return o.run(ctx)
	})
}

// AddFlags implements bench.Options.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Nodes, "nodes", 1000, "how many nodes there are")
	flags.IntSliceVar(&o.VMs, "vms", []int{1000, 10000}, "how many VMs there are, round by round")
	flags.IntVar(&o.More, "more", 20, "how often one more VM is created")
	flags.DurationVar(&o.Rest, "rest", time.Minute, "how long writes at rest are counted")
	flags.StringVar(&o.Kwok, "kwok", "", "program kwok")
	flags.StringVar(&o.Controller, "controller", "", "program drover-controller")
	flags.StringVar(&o.Drover, "drover", "", "program drover, for its kubectl")
	flags.StringVar(&o.CRDs, "crds", "", "kustomization of the CRDs")
	flags.StringVar(&o.Pprof, "pprof", "0", "address at which the controller can be profiled; 0 for none")
	flags.StringVar(&o.JSON, "json", "", "file for all figures; empty for none")
}

// Validate implements bench.Options.
func (o *options) Validate() error {
	var errs []error
	if o.Nodes < 1 || o.More < 1 || len(o.VMs) == 0 {
		errs = append(errs, fmt.Errorf("--nodes is %d, --more %d, --vms %v: there must be at least 1 of each", o.Nodes, o.More, o.VMs))
	}
	for _, n := range o.VMs {
		if n < 1 {
			errs = append(errs, fmt.Errorf("--vms has %d: it must be at least 1", n))
		}
	}
	for flag, path := range map[string]string{"kwok": o.Kwok, "controller": o.Controller, "drover": o.Drover, "crds": o.CRDs} {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	return errors.Join(errs...)
}

// run measures and prints.
func (o *options) run(ctx context.Context) (err error) {
	e, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	bench.Logf("%d nodes are ready", o.Nodes)
	alone, err := e.measureMore(ctx, "alone")
	if err != nil {
		return err
	}
	var rounds []round
	for _, count := range o.VMs {
		r, err := e.measureRound(ctx, count)
		if err != nil {
			return fmt.Errorf("%d VMs: %w", count, err)
		}
		rounds = append(rounds, r)
	}
	o.print(alone, rounds)
	if o.JSON == "" {
		return nil
	}
	return bench.WriteJSON(o.JSON, map[string]any{"machine": bench.ThisMachine(), "options": o, "alone": alone, "rounds": rounds})
}

// print prints the figures side by side, one column for each round, and the aims.
func (o *options) print(alone bench.Sample, rounds []round) {
	header := []string{"what"}
	for _, r := range rounds {
		header = append(header, strconv.Itoa(r.VMs)+" VMs")
	}
	table := bench.NewTable(append(header, "aim")...)
	row := func(what, aim string, value func(round) string) {
		cells := []string{what}
		for _, r := range rounds {
			cells = append(cells, value(r))
		}
		table.Row(append(cells, aim)...)
	}
	each := func(d time.Duration, r round) string { return bench.FormatDuration(d / time.Duration(r.VMs)) }
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
	row("bare pod to Running, each", "", func(r round) string { return each(r.Pods.Up, r) })
	row("VM to Active, each", "flat", func(r round) string { return each(r.VMsTook.Up, r) })
	row("bare pod gone, each", "", func(r round) string { return each(r.Pods.Down, r) })
	row("VM gone, each", "flat", func(r round) string { return each(r.VMsTook.Down, r) })
	row("writes of a VM to Active, with the user's", "3 and the user's", func(r round) string { return number(r.VMsTook.VMWritesUp) })
	row("writes of a VM until gone, with the user's", "2 and the user's", func(r round) string { return number(r.VMsTook.VMWritesDown) })
	row("writes of its pod, up and down", "1 more than bare", func(r round) string { return number(r.VMsTook.PodWrites) })
	row("writes of a bare pod, up and down", "", func(r round) string { return number(r.Pods.PodWrites) })
	row("requests for a VM, up", "", func(r round) string { return number(r.VMsTook.RequestsUp) })
	row("requests for a VM, down", "", func(r round) string { return number(r.VMsTook.RequestsDown) })
	row("requests for a bare pod, up", "", func(r round) string { return number(r.Pods.RequestsUp) })
	row("requests for a bare pod, down", "", func(r round) string { return number(r.Pods.RequestsDown) })
	row("writes at rest", "0", func(r round) string { return number(r.RestWrites) })
	row("one more VM, p95", "1.2 x alone", func(r round) string { return bench.FormatDuration(r.More.Percentile(95)) })
	row("one VM alone, p95", "", func(round) string { return bench.FormatDuration(alone.Percentile(95)) })
	row("controller, MB", "1.5 x informers", func(r round) string { return number(float64(r.Controller.Resident) / 1e6) })
	row("two bare informers, MB", "", func(r round) string { return number(float64(r.Informers.Resident) / 1e6) })
	fmt.Println(table)
}
