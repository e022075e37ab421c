// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program cli measures how long kubectl-vm takes to start, and to list many VMs, beside
// kubectl in the same run.
//
// Start with options.Run. Everything is real but the servers: bin/drover up with its
// controller and the fake driver, and the programs as users start them, in turns.
// Slowness is never an error; a failure of function is.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// The aims: start in 25 ms, and list 1,000 VMs in 110 ms on a machine where kubectl takes
// 133 ms, so in that share of kubectl's time on this one.
const (
	startAim  = 25
	listShare = 110.0 / 133
)

// runTimeout bounds a run on a slow machine.
const runTimeout = time.Minute

const namespace = "fleet"

// options are the flags.
type options struct {
	Turns   int    `json:"turns"`
	VMs     int    `json:"vms"`
	Program string `json:"-"`
	Kubectl string `json:"kubectl"`
	JSON    string `json:"-"`
}

func main() { bench.Main("cli", &options{}, nil) }

// AddFlags implements bench.Benchmark.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Turns, "turns", 30, "how often the programs take turns")
	flags.IntVar(&o.VMs, "vms", 1000, "how many VMs are listed")
	flags.StringVar(&o.Program, "program", "bin/kubectl-vm", "program to measure")
	flags.StringVar(&o.Kubectl, "kubectl", "kubectl", "program to compare with; bin/drover kubectl if there is none")
	flags.StringVar(&o.JSON, "json", "bin/bench/cli.json", "file for all figures")
}

// Validate implements bench.Benchmark.
func (o *options) Validate() error {
	_, err := os.Stat(o.Program)
	return errors.Join(err, bench.CheckAtLeast(1, map[string]int{"turns": o.Turns, "vms": o.VMs}))
}

// Run implements bench.Benchmark.
func (o *options) Run(ctx context.Context) (err error) {
	e, err := bench.NewEnvironment(ctx, framework.ClusterOptions{WithController: true, Args: []string{
		"--vm-driver=fake", "--usage-period=1s", "--metrics-bind-address=0", "--health-probe-bind-address=0",
	}}, namespace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := e.VMsIn(namespace, 8).CreateSettled(ctx, o.VMs); err != nil {
		return err
	}
	commands, err := o.commands()
	if err != nil {
		return err
	}
	if err := o.measureAll(ctx, e, commands); err != nil {
		return err
	}
	return o.report(commands).Finish(o.JSON)
}

// The commands that are measured, each before the one that it is compared with.
const (
	help = 2 * iota
	list
)

// command is what is measured.
type command struct {
	name string
	args []string
	// lines are how many it prints at least.
	lines int
	// wall and cpu are what it took in each turn, in ms.
	wall, cpu []float64
}

func (o *options) commands() ([]*command, error) {
	kubectl := []string{o.Kubectl}
	if _, err := exec.LookPath(o.Kubectl); err != nil {
		drover, err := framework.DroverBinary()
		if err != nil {
			return nil, err
		}
		kubectl = []string{drover, "kubectl"}
	}
	o.Kubectl = strings.Join(kubectl, " ")
	in := "--namespace=" + namespace
	return []*command{
		help:     {name: "kubectl vm --help", args: []string{o.Program, "--help"}, lines: 10},
		help + 1: {name: "kubectl --help", args: append(slices.Clip(kubectl), "--help"), lines: 10},
		list:     {name: "kubectl vm list", args: []string{o.Program, "list", in}, lines: o.VMs + 1},
		list + 1: {name: "kubectl get vms", args: append(slices.Clip(kubectl), "get", "vms", in), lines: o.VMs + 1},
	}, nil
}

// measureAll runs the commands in turns, so that a machine that becomes slower affects all.
func (o *options) measureAll(ctx context.Context, e *bench.Environment, commands []*command) error {
	var contenders []bench.Contender
	for _, c := range commands {
		if err := c.measure(ctx, e.Kubeconfig); err != nil {
			return err
		}
		c.wall, c.cpu = nil, nil // the first run fills caches
		contenders = append(contenders, func(int) error { return c.measure(ctx, e.Kubeconfig) })
	}
	bench.Logf("run %d commands %d times", len(commands), o.Turns)
	return bench.TakeTurns(o.Turns, contenders...)
}

func (c *command) measure(ctx context.Context, kubeconfig string) error {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.args, " "), err, errs.String())
	}
	c.wall = append(c.wall, bench.Milliseconds(time.Since(begin)))
	c.cpu = append(c.cpu, bench.Milliseconds(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines < c.lines {
		return fmt.Errorf("%s printed %d lines, want %d", strings.Join(c.args, " "), lines, c.lines)
	}
	return nil
}

// report compares each command with the one after it.
func (o *options) report(commands []*command) *bench.Report {
	r := bench.NewReport(o)
	compare := func(n int) *bench.Row {
		ours, kubectl := commands[n], commands[n+1]
		r.AddRow("cli", ours.name+", CPU", o.VMs, "ms", ours.cpu...).CompareWith(kubectl.name, kubectl.cpu...)
		return r.AddRow("cli", ours.name, o.VMs, "ms", ours.wall...).CompareWith(kubectl.name, kubectl.wall...)
	}
	compare(help).AtMost(startAim)
	compare(list).RatioAtMost(listShare)
	return r
}
