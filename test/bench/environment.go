// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"os"

	"cloudnative.tw/drover/test/framework"
)

// Namespaces of the VMs.
const (
	Namespace     = "bench"
	idleNamespace = "idle"
)

// Environment is an API server with VMs, and the report of the measurements there.
type Environment struct {
	*framework.Environment
	*Report
	// VMs are measured. Idle are other VMs that exist at the same time.
	VMs, Idle *VMs
	// Temp is a folder for the measured programs.
	Temp string

	pids []int // of the API server
}

// In returns a measurement that starts a separate API server, which syncs its data to the disk, and calls measure.
func In(opts framework.ClusterOptions, measure func(context.Context, *Environment) error) func(context.Context, *Report) error {
	opts.Durable = true
	return func(ctx context.Context, r *Report) (err error) {
		cluster, err := framework.NewCluster(opts)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cluster.Close()) }()
		e, err := OpenEnvironment(ctx, cluster, r)
		if err != nil {
			return err
		}
		e.pids = []int{cluster.PID()}
		measuring, cancel := context.WithCancel(ctx)
		defer cancel() // end the watches before the API server
		return errors.Join(measure(measuring, e), e.Close())
	}
}

// OpenEnvironment returns an environment in a running cluster.
func OpenEnvironment(ctx context.Context, cluster *framework.Cluster, r *Report) (e *Environment, err error) {
	e = &Environment{Report: r}
	if e.Environment, err = framework.OpenEnvironment(cluster); err != nil {
		return nil, err
	}
	e.VMs, e.Idle = e.vmsIn(Namespace), e.vmsIn(idleNamespace)
	for _, name := range []string{Namespace, idleNamespace} {
		if _, err := e.AddNamespace(ctx, name); err != nil {
			return nil, err
		}
	}
	e.Temp, err = os.MkdirTemp("", "drover-bench-")
	return e, err
}

// Close removes the temporary folder. It does not close the cluster.
func (e *Environment) Close() error { return os.RemoveAll(e.Temp) }

// AwaitQuiet waits until neither the API server nor the process has work left.
func (e *Environment) AwaitQuiet(ctx context.Context, c *Controller) error {
	return AwaitQuiet(ctx, append([]int{c.PID()}, e.pids...)...)
}
