// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
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
	options
	temp    string
	cluster *framework.Cluster
	kube    kubernetes.Interface
	vms     versioned.Interface
	gapVMs  typed.VirtualMachineInterface
	gap     *bench.Log[*api.VirtualMachine]
	fleets  []*fleet // Drover's and the plain one
}

func benchmarkMain(ctx context.Context, o options) (err error) {
	b := &benchmark{options: o}
	defer func() { err = errors.Join(err, b.closeAll()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the watches, before what they watch
	if err := b.openEnvironment(ctx); err != nil {
		return err
	}
	r := newReport(o)
	if err := b.runMeasurements(ctx, r); err != nil {
		return err
	}
	r.addRows()
	fmt.Print(r.formatText())
	return bench.WriteJSON(o.JSON, r)
}

func (b *benchmark) openEnvironment(ctx context.Context) (err error) {
	if b.temp, err = os.MkdirTemp("", "drover-bench-"); err != nil {
		return err
	}
	if b.cluster, err = framework.NewCluster(framework.ClusterOptions{Durable: true}); err != nil {
		return err
	}
	if b.kube, err = kubernetes.NewForConfig(b.cluster.Config); err != nil {
		return err
	}
	if b.vms, err = versioned.NewForConfig(b.cluster.Config); err != nil {
		return err
	}
	for _, name := range []string{manyNamespace, gapNamespace} {
		if err := bench.CreateNamespace(ctx, b.kube, name); err != nil {
			return err
		}
	}
	b.gapVMs = b.vms.CloudnativeV1alpha1().VirtualMachines(gapNamespace)
	if b.gap, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.gapVMs)); err != nil {
		return err
	}
	return b.openFleets(ctx)
}

func (b *benchmark) openFleets(ctx context.Context) error {
	launchers := map[string]func(context.Context, string) (*replica, error){
		nameDrover: b.startDrover,
		namePlain: func(_ context.Context, identity string) (*replica, error) {
			return startPlain(b.cluster.Kubeconfig, namePlain, identity, b.Settings)
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
	leases := b.kube.CoordinationV1().RESTClient()
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
		"--kubeconfig=" + b.cluster.Kubeconfig, "--vm-driver=fake", "--fake-dir=" + filepath.Join(b.temp, "fake"),
		"--metrics-bind-address=0",
	}, args...)...)
}

// runMeasurements measures without VMs, then makes them and measures with them.
func (b *benchmark) runMeasurements(ctx context.Context, r *report) error {
	if err := b.measureHandovers(ctx, r, 0); err != nil || b.VMs == 0 {
		return err
	}
	if err := b.createVMs(ctx, r); err != nil {
		return err
	}
	err := b.measureHandovers(ctx, r, b.VMs)
	for _, f := range b.fleets {
		r.Lost[f.name] = f.lost
	}
	return err
}

// createVMs lets a controller without election create the servers: so much work at
// once can cost leaders a short Lease.
func (b *benchmark) createVMs(ctx context.Context, r *report) error {
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
	r.Made, err = bench.CreateAndSettle(ctx, b.vms.CloudnativeV1alpha1().VirtualMachines(manyNamespace), b.VMs, b.AtOnce)
	if err != nil {
		return errors.Join(err, creator.Stop())
	}
	bench.Logf("All created after %s, Active after %s, settled after %s", roundDuration(r.Made.Created), roundDuration(r.Made.Active), roundDuration(r.Made.Settled))
	return creator.Stop()
}

// measureHandovers lets the fleets take turns, so that other activity on the machine
// affects both.
func (b *benchmark) measureHandovers(ctx context.Context, r *report, vms int) error {
	if err := b.waitUntilSteady(ctx); err != nil {
		return err
	}
	// The API server's first creation of a kind takes seconds.
	if err := bench.DryRunCreate(ctx, b.gapVMs); err != nil {
		return err
	}
	begin := time.Now()
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
				r.addHandover(f.name, vms, sig, h)
			}
		}
	}
	after, err := bench.NewMeter(b.runningPIDs())
	r.Others = append(r.Others, after.Others(before))
	bench.Logf("%d runs with %d VMs took %s", b.Runs, vms, roundDuration(time.Since(begin)))
	return err
}

// runningPIDs of all processes that run.
func (b *benchmark) runningPIDs() []int {
	pids := []int{b.cluster.PID()}
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
	if b.cluster != nil {
		err = errors.Join(err, b.cluster.Close())
	}
	return errors.Join(err, os.RemoveAll(b.temp))
}

func roundDuration(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
