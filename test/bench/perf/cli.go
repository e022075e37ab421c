// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// The aims: start in 25 ms, and list 1,000 VMs in at most 110/133 of kubectl's time, which was 133 ms
// on the host where the aims were set.
const (
	startAim  = 25
	listShare = 110.0 / 133
)

// runTimeout bounds a run on a slow host.
const runTimeout = time.Minute

// kubectlVM is the program that is measured.
const kubectlVM = "bin/kubectl-vm"

// measureCLI measures how long kubectl-vm takes to start, and to list many VMs, and compares
// it with kubectl.
func measureCLI(ctx context.Context, e *bench.Environment) error {
	for _, n := range e.Sizes {
		if err := e.VMs.CreateSettled(ctx, n); err != nil {
			return err
		}
		commands, err := newCommands(n)
		if err != nil {
			return err
		}
		if err := measureCommands(ctx, e, commands); err != nil {
			return err
		}
		addRows := func(ours, kubectl *command) (wallTime *bench.Row) {
			e.AddRow(ours.name+", CPU", n, "ms", ours.cpu...).CompareWith(kubectl.name, kubectl.cpu...)
			return e.AddRow(ours.name, n, "ms", ours.wall...).CompareWith(kubectl.name, kubectl.wall...)
		}
		addRows(commands[help], commands[kubectlHelp]).AtMost(startAim)
		addRows(commands[list], commands[kubectlList]).RatioAtMost(listShare)
		if _, err := e.VMs.DeleteMany(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// The commands that are measured.
const (
	help = iota
	kubectlHelp
	list
	kubectlList
)

// command is a measured command.
type command struct {
	name string
	args []string
	// lines is the least number of lines that it prints.
	lines int
	// wall and cpu are the times that it took in each turn, in ms.
	wall, cpu []float64
}

// newCommands returns the commands. If there is no kubectl, it uses bin/drover kubectl.
func newCommands(vms int) ([]*command, error) {
	kubectl := []string{"kubectl"}
	if _, err := exec.LookPath(kubectl[0]); err != nil {
		drover, err := framework.DroverBinary()
		if err != nil {
			return nil, err
		}
		kubectl = []string{drover, "kubectl"}
	}
	in := "--namespace=" + bench.Namespace
	return []*command{
		help:        {name: "kubectl vm --help", args: []string{kubectlVM, "--help"}, lines: 10},
		kubectlHelp: {name: "kubectl --help", args: append(slices.Clip(kubectl), "--help"), lines: 10},
		list:        {name: "kubectl vm list", args: []string{kubectlVM, "list", in}, lines: vms + 1},
		kubectlList: {name: "kubectl get vms", args: append(slices.Clip(kubectl), "get", "vms", in), lines: vms + 1},
	}, nil
}

// measureCommands runs the commands in turns, so that a host that becomes slower affects all.
func measureCommands(ctx context.Context, e *bench.Environment, commands []*command) error {
	var contenders []bench.Contender
	for _, c := range commands {
		if err := c.measure(ctx, e.Kubeconfig); err != nil {
			return err
		}
		c.wall, c.cpu = nil, nil // the first run fills caches
		contenders = append(contenders, func(int) error { return c.measure(ctx, e.Kubeconfig) })
	}
	return bench.TakeTurns(e.Turns, contenders...)
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
	lines := bytes.Count(out.Bytes(), []byte("\n"))
	return assert.ErrorUnless(lines >= c.lines, "%s printed %d lines, want %d", strings.Join(c.args, " "), lines, c.lines)
}
