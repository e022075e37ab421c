// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program cli measures how long kubectl-vm takes to start, and to list many VMs, beside
// kubectl in the same run.
//
// Start with measureAll. Everything is real but the servers: bin/drover up with its
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
	"k8s.io/client-go/kubernetes"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// The aims: start in 25 ms, and list 1,000 VMs in 110 ms on a machine where kubectl takes
// 133 ms, so in that share of kubectl's time on this one.
const (
	startAim  = 25 * time.Millisecond
	listShare = 110.0 / 133
)

// Limits of steps, on a slow machine.
const (
	settleTimeout = 10 * time.Minute
	runTimeout    = time.Minute
)

const namespace = "fleet"

// options are the flags.
type options struct {
	Turns   int    `json:"turns"`
	VMs     int    `json:"vms"`
	Program string `json:"-"`
	Kubectl string `json:"kubectl"`
	JSON    string `json:"-"`
}

func main() {
	bench.Main("cli", func(ctx context.Context, args []string) error {
		o := options{}
		if err := bench.Parse("cli", args, &o); err != nil {
			return err
		}
		return o.run(ctx)
	})
}

// AddFlags implements bench.Options.
func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&o.Turns, "turns", 30, "how often the programs take turns")
	flags.IntVar(&o.VMs, "vms", 1000, "how many VMs are listed")
	flags.StringVar(&o.Program, "program", "bin/kubectl-vm", "program to measure")
	flags.StringVar(&o.Kubectl, "kubectl", "kubectl", "program to compare with; bin/drover kubectl if there is none")
	flags.StringVar(&o.JSON, "json", "bin/bench/cli.json", "file for all figures")
}

// Validate implements bench.Options.
func (o *options) Validate() error {
	if o.Turns < 1 || o.VMs < 1 {
		return fmt.Errorf("--turns is %d and --vms %d: they must be at least 1", o.Turns, o.VMs)
	}
	_, err := os.Stat(o.Program)
	return err
}

func (o *options) run(ctx context.Context) (err error) {
	cluster, err := framework.NewCluster(framework.ClusterOptions{WithController: true, Args: []string{
		"--vm-driver=fake", "--usage-period=1s", "--metrics-bind-address=0", "--health-probe-bind-address=0",
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	if err := o.createVMs(ctx, cluster); err != nil {
		return err
	}
	figures, err := o.measureAll(ctx, cluster)
	if err != nil {
		return err
	}
	fmt.Print(o.report(figures))
	return bench.WriteJSON(o.JSON, map[string]any{"options": o, "figures": figures})
}

func (o *options) createVMs(ctx context.Context, cluster *framework.Cluster) error {
	kube, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		return err
	}
	vms, err := versioned.NewForConfig(cluster.Config)
	if err != nil {
		return err
	}
	if err := bench.CreateNamespace(ctx, kube, namespace); err != nil {
		return err
	}
	bench.Logf("create %d VMs", o.VMs)
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err = bench.CreateAndSettle(ctx, vms.CloudnativeV1alpha1().VirtualMachines(namespace), o.VMs, 8)
	return err
}

// Names of the commands that are compared.
const (
	listName     = "kubectl vm list"
	comparedName = "kubectl get vms"
)

// command is what is measured.
type command struct {
	Name string
	args []string
	// aim is what the median should be at most; 0 for a comparison.
	aim time.Duration
	// lines are how many it prints at least.
	lines int
}

// figure is what was measured of a command.
type figure struct {
	Command string        `json:"command"`
	Wall    bench.Sample  `json:"wallMilliseconds"`
	CPU     bench.Sample  `json:"cpuMilliseconds"`
	Aim     time.Duration `json:"aimNanoseconds,omitempty"`
}

func (o *options) commands() ([]command, error) {
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
	return []command{
		{Name: "kubectl vm --help", args: []string{o.Program, "--help"}, aim: startAim, lines: 10},
		{Name: "kubectl --help", args: append(slices.Clip(kubectl), "--help"), lines: 10},
		{Name: listName, args: []string{o.Program, "list", in}, lines: o.VMs + 1},
		{Name: comparedName, args: append(slices.Clip(kubectl), "get", "vms", in), lines: o.VMs + 1},
	}, nil
}

// measureAll runs the commands in turns, so that a machine that becomes slower affects all.
func (o *options) measureAll(ctx context.Context, cluster *framework.Cluster) ([]*figure, error) {
	commands, err := o.commands()
	if err != nil {
		return nil, err
	}
	figures := make([]*figure, len(commands))
	for i, c := range commands {
		figures[i] = &figure{Command: c.Name, Aim: c.aim}
	}
	bench.Logf("run %d commands %d times", len(commands), o.Turns)
	for turn := range o.Turns + 1 {
		for i, c := range commands {
			next := figures[i]
			if turn == 0 {
				next = &figure{} // the first run fills caches
			}
			if err := c.measure(ctx, cluster.Kubeconfig, next); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

func (c command) measure(ctx context.Context, kubeconfig string, f *figure) error {
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
	f.Wall = append(f.Wall, time.Since(begin))
	f.CPU = append(f.CPU, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines < c.lines {
		return fmt.Errorf("%s printed %d lines, want %d", strings.Join(c.args, " "), lines, c.lines)
	}
	return nil
}

func (o *options) report(figures []*figure) string {
	for _, f := range figures {
		if f.Command == comparedName {
			setAim(figures, time.Duration(listShare*float64(f.Wall.Median())))
		}
	}
	t := bench.NewTable(fmt.Sprintf("%d VMs, %d turns", o.VMs, o.Turns), "wall, median", "p99", "CPU, median", "aim")
	for _, f := range figures {
		aim := ""
		if f.Aim > 0 {
			aim = fmt.Sprintf("%s: %s", bench.FormatDuration(f.Aim), bench.Verdict(f.Wall.Median() <= f.Aim))
		}
		t.Row(f.Command, bench.FormatDuration(f.Wall.Median()), bench.FormatDuration(f.Wall.Percentile(99)), bench.FormatDuration(f.CPU.Median()), aim)
	}
	return t.String()
}

// setAim sets the aim of the list.
func setAim(figures []*figure, aim time.Duration) {
	for _, f := range figures {
		if f.Command == listName {
			f.Aim = aim
		}
	}
}
