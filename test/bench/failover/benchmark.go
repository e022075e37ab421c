// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// Names of the fleets, which are those of their Leases too.
const (
	nameDrover = "drover"
	namePlain  = "client-go"
)

// Namespaces of the VMs that exist from the beginning, and of those that are created
// while there is no leader.
const (
	manyNamespace = "many"
	gapNamespace  = "gap"
)

// benchmark is one run of the program.
type benchmark struct {
	*options
	*bench.Environment
	gapVMs    *bench.VMs
	gap       *bench.Log[*api.VirtualMachine]
	fleets    []*fleet // Drover's and the plain one
	report    *bench.Report
	handovers map[circumstances][]handover
}

// Run implements bench.Benchmark.
func (o *options) Run(ctx context.Context) (err error) {
	e, err := bench.NewEnvironment(ctx, framework.ClusterOptions{}, manyNamespace, gapNamespace)
	if err != nil {
		return err
	}
	b := &benchmark{
		options: o, Environment: e, gapVMs: e.VMsIn(gapNamespace, 1), report: bench.NewReport(o), handovers: map[circumstances][]handover{},
	}
	defer func() { err = errors.Join(err, b.closeAll()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the watches, before what they watch
	if b.gap, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.gapVMs)); err != nil {
		return err
	}
	if err := b.openFleets(ctx); err != nil {
		return err
	}
	if err := b.runMeasurements(ctx); err != nil {
		return err
	}
	b.addRows()
	return b.report.Finish(o.JSON)
}

func (b *benchmark) openFleets(ctx context.Context) error {
	launchers := map[string]func(context.Context, string) (*replica, error){
		nameDrover: b.startDrover,
		namePlain: func(_ context.Context, identity string) (*replica, error) {
			return startPlain(b.Kubeconfig, namePlain, identity, b.Settings)
		},
	}
	for _, name := range []string{nameDrover, namePlain} {
		log, err := b.followLease(ctx, name)
		if err != nil {
			return err
		}
		b.fleets = append(b.fleets, &fleet{name: name, log: log, launch: launchers[name], want: b.Replicas})
	}
	return nil
}

func (b *benchmark) followLease(ctx context.Context, name string) (*bench.Log[*coordinationv1.Lease], error) {
	leases := b.Kube.CoordinationV1().RESTClient()
	return bench.StartLog[*coordinationv1.Lease](ctx, cache.NewListWatchFromClient(
		leases, "leases", metav1.NamespaceDefault, fields.OneTermEqualSelector(metav1.ObjectNameField, name)))
}

func (b *benchmark) startDrover(ctx context.Context, identity string) (*replica, error) {
	c, err := b.startController(ctx, append([]string{
		"--holder-identity=" + identity,
		"--lease-lock-name=" + nameDrover, "--lease-lock-namespace=" + metav1.NamespaceDefault,
	}, timeArgs("leader-elect-", b.Settings)...)...)
	if err != nil {
		return nil, err
	}
	return &replica{Process: c.Process, identity: identity, ready: c.Ready}, nil
}

func (b *benchmark) startController(ctx context.Context, args ...string) (*bench.Controller, error) {
	return bench.StartController(ctx, b.Controller, nil, append([]string{
		"--kubeconfig=" + b.Kubeconfig, "--vm-driver=fake", "--fake-dir=" + filepath.Join(b.Temp, "fake"),
		"--metrics-bind-address=0",
	}, args...)...)
}

// runMeasurements measures without VMs, then makes them and measures with them.
func (b *benchmark) runMeasurements(ctx context.Context) error {
	for _, vms := range b.vmCounts() {
		if vms > 0 {
			if err := b.createVMs(ctx); err != nil {
				return err
			}
		}
		if err := b.measureHandovers(ctx, vms); err != nil {
			return err
		}
	}
	for _, f := range b.fleets {
		if f.lost > 0 {
			b.report.Notef("%d replicas of %s ended by themselves, having lost the Lease", f.lost, f.name)
		}
	}
	return nil
}

// createVMs lets a controller without election create the servers: so much work at
// once can cost leaders a short Lease.
func (b *benchmark) createVMs(ctx context.Context) error {
	for _, f := range b.fleets {
		if err := f.stopAll(); err != nil {
			return err
		}
	}
	creator, err := b.startController(ctx, "--leader-elect=false")
	if err != nil {
		return err
	}
	bench.Logf("Creating %d VMs, %d at a time", b.VMs, b.AtOnce)
	err = b.VMsIn(manyNamespace, b.AtOnce).CreateSettled(ctx, b.VMs)
	return errors.Join(err, creator.Stop())
}

// measureHandovers lets the fleets take turns, so that other activity on the machine
// affects both.
func (b *benchmark) measureHandovers(ctx context.Context, vms int) error {
	if err := b.waitUntilSteady(ctx); err != nil {
		return err
	}
	// The API server's first creation of a kind takes seconds.
	if err := b.gapVMs.CreateOne(ctx, "try", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return err
	}
	before, err := bench.NewMeter(b.runningPIDs())
	if err != nil {
		return err
	}
	for n := range b.Runs {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			for _, f := range b.fleets {
				name := ""
				if f.name == nameDrover {
					name = fmt.Sprintf("gap-%d-%d-%d", vms, sig, n)
				}
				h, err := b.measureHandover(ctx, f, sig, name)
				if err != nil {
					return fmt.Errorf("with %d VMs, run %d: %w", vms, n+1, err)
				}
				at := circumstances{f.name, vms, sig}
				b.handovers[at] = append(b.handovers[at], h)
			}
		}
	}
	after, err := bench.NewMeter(b.runningPIDs())
	b.report.Notef("Other programs took %.0f %% of the CPUs during the runs with %d VMs", after.Others(before), vms)
	return err
}

// runningPIDs of all processes that run.
func (b *benchmark) runningPIDs() []int {
	pids := []int{b.PID()}
	for _, f := range b.fleets {
		for _, r := range f.replicas {
			if !r.HasEnded() {
				pids = append(pids, r.PID())
			}
		}
	}
	return pids
}

func (b *benchmark) closeAll() (err error) {
	for _, f := range b.fleets {
		err = errors.Join(err, f.stopAll())
	}
	return errors.Join(err, b.Close())
}
