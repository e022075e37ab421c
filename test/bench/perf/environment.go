// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// vmsNamespace is for measured VMs, idleNamespace for the VMs among which others
	// are created.
	vmsNamespace  = "bench"
	idleNamespace = "idle"
	// readyTimeout is how long a process may take until its caches are filled.
	readyTimeout = 2 * time.Minute
	// timeoutPerVM and atLeast bound operations on VMs.
	timeoutPerVM = time.Second
	minTimeout   = 2 * time.Minute
)

// environment is an API server, and what else VMs need.
type environment struct {
	benchmark *benchmark
	cluster   *framework.Cluster
	kube      kubernetes.Interface
	client    versioned.Interface
	vms       typed.VirtualMachineInterface
	id        string // of the cluster, as servers carry it
	temp      string
}

// apiOnly starts a cluster without a controller, which is a separate process.
var apiOnly = framework.ClusterOptions{Durable: true}

func (b *benchmark) newEnvironment(ctx context.Context, opts framework.ClusterOptions) (*environment, error) {
	w := &environment{benchmark: b}
	var err error
	if w.cluster, err = framework.NewCluster(opts); err != nil {
		return nil, err
	}
	if err := w.openClients(ctx); err != nil {
		return nil, errors.Join(err, w.closeEnvironment())
	}
	return w, nil
}

func (w *environment) openClients(ctx context.Context) (err error) {
	if w.temp, err = os.MkdirTemp("", "drover-bench-"); err != nil {
		return err
	}
	if w.kube, err = kubernetes.NewForConfig(w.cluster.Config); err != nil {
		return err
	}
	if w.client, err = versioned.NewForConfig(w.cluster.Config); err != nil {
		return err
	}
	for _, name := range []string{vmsNamespace, idleNamespace} {
		if err := bench.CreateNamespace(ctx, w.kube, name); err != nil {
			return err
		}
	}
	w.vms = w.vmsIn(vmsNamespace)
	system, err := w.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err == nil {
		w.id = string(system.UID)
	}
	return err
}

func (w *environment) vmsIn(namespace string) typed.VirtualMachineInterface {
	return w.client.CloudnativeV1alpha1().VirtualMachines(namespace)
}

// closeEnvironment removes containers too, which are there only if a suite failed.
func (w *environment) closeEnvironment() error {
	err := w.cluster.Close()
	ctx, cancel := context.WithTimeout(context.Background(), minTimeout)
	defer cancel()
	if engine, openErr := client.New(client.FromEnv); openErr == nil && w.id != "" {
		removeLabelled(ctx, engine, docker.LabelCluster+"="+w.id)
		_ = engine.Close()
	}
	return errors.Join(err, os.RemoveAll(w.temp))
}

// process is a process that is measured.
type process struct {
	*framework.Process
	metrics string // address of its metrics
}

// startDrover starts a controller, which is the only one.
func (w *environment) startDrover(ctx context.Context, env []string, args ...string) (*process, error) {
	address, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	all := append([]string{
		"--kubeconfig=" + w.cluster.Kubeconfig, "--leader-elect=false", "--metrics-bind-address=" + address,
		"--docker-image=" + framework.GuestPlain,
	}, args...)
	c, err := bench.StartController(ctx, w.benchmark.Controller, env, append(all, w.benchmark.Flags...)...)
	if err != nil {
		return nil, err
	}
	p := &process{Process: c.Process, metrics: "http://" + address + "/metrics"}
	return p, p.waitUntilReady(c.Ready)
}

// fakeDir is a folder for fake servers, other than those in memory.
func (w *environment) fakeDir(name string) string { return filepath.Join(w.temp, name) }

// startFloor starts this program as a floor.
func (w *environment) startFloor(name string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child, err := framework.StartProcess(self, []string{name, w.cluster.Kubeconfig}, nil)
	if err != nil {
		return nil, err
	}
	p := &process{Process: child}
	return p, p.waitUntilReady(func() error {
		if !strings.Contains(child.Output(), floorReady) {
			return errors.New("its cache is not filled")
		}
		return nil
	})
}

func (p *process) waitUntilReady(ready func() error) error {
	_, err := bench.Poll(readyTimeout, func() error {
		if p.HasEnded() {
			return errors.New("it has ended")
		}
		return ready()
	})
	if err != nil {
		return fmt.Errorf("not ready: %w; it printed:\n%s", err, p.Output())
	}
	return nil
}

// stopWith ends the process and joins an error of what was done with it.
func (p *process) stopWith(err error) error {
	if err = errors.Join(err, p.Stop()); err != nil {
		err = fmt.Errorf("%w; the process printed:\n%s", err, p.Output())
	}
	return err
}

// readMetrics reads the process's metrics.
func (p *process) readMetrics(ctx context.Context) (framework.Metrics, error) {
	return readMetrics(ctx, p.metrics)
}

// apiMetrics are those of the API server.
func (w *environment) apiMetrics(ctx context.Context) (framework.Metrics, error) {
	return w.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
}

// withVMTimeout returns a context with time for an operation on that many VMs.
func withVMTimeout(ctx context.Context, vms int) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, max(minTimeout, time.Duration(vms)*timeoutPerVM), errors.New("not done in time"))
}

// createVMs makes VMs, and returns how long it took until all were Active.
func (w *environment) createVMs(ctx context.Context, count int) (time.Duration, error) {
	return w.waitForAll(ctx, count, isActive, func(ctx context.Context) error {
		return bench.CreateVMs(ctx, w.vms, count, w.benchmark.AtOnce)
	})
}

// deleteVMs deletes those VMs, and returns how long it took until all were gone.
func (w *environment) deleteVMs(ctx context.Context, count int) (time.Duration, error) {
	return w.waitForAll(ctx, count, isGone, func(ctx context.Context) error {
		return bench.ForEach(ctx, count, w.benchmark.AtOnce, func(ctx context.Context, n int) error {
			return w.vms.Delete(ctx, bench.VMName(n), metav1.DeleteOptions{})
		})
	})
}

func (w *environment) waitForAll(ctx context.Context, count int, match func(watch.Event, *api.VirtualMachine) bool, do func(context.Context) error) (time.Duration, error) {
	ctx, cancel := withVMTimeout(ctx, count)
	defer cancel()
	return bench.WaitForAll(ctx, w.vms, count, match, do)
}

func isActive(_ watch.Event, vm *api.VirtualMachine) bool { return vm.Status.Phase == api.PhaseActive }

func isGone(e watch.Event, _ *api.VirtualMachine) bool { return e.Type == watch.Deleted }

// waitUntilQuiet waits until no process has work left.
func (w *environment) waitUntilQuiet(ctx context.Context, p *process) error {
	return bench.AwaitQuiet(ctx, w.cluster.PID(), p.PID())
}
