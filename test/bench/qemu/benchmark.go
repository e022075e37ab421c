// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// operationTimeout bounds every single operation.
	operationTimeout = 2 * time.Minute
	// pollPeriod is the time between checks for the guest's output.
	pollPeriod = time.Millisecond
)

// benchmark is one run of the program.
type benchmark struct {
	options
	temp    string
	guest   string
	cluster *framework.Cluster
	vms     typed.VirtualMachineInterface
	log     *bench.Log[*api.VirtualMachine]
	report  *report
}

func benchmarkMain(ctx context.Context, o options) (err error) {
	b := &benchmark{options: o, report: newReport(o)}
	defer func() { err = errors.Join(err, b.closeAll()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // the watch, before what it watches
	if err := b.openEnvironment(ctx); err != nil {
		return err
	}
	if err := b.runMeasurements(ctx); err != nil {
		return err
	}
	fmt.Print(b.report.formatText())
	return bench.WriteJSON(o.JSON, b.report)
}

func (b *benchmark) openEnvironment(ctx context.Context) (err error) {
	if b.temp, err = os.MkdirTemp("", "drover-bench-"); err != nil {
		return err
	}
	if err := os.Mkdir(b.imagesDir(), 0o700); err != nil {
		return err
	}
	b.guest = filepath.Join(b.imagesDir(), "guest.img")
	if err := framework.AssembleBootGuest(ctx, b.guest); err != nil {
		return err
	}
	if b.cluster, err = framework.NewCluster(framework.ClusterOptions{Durable: true}); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(b.cluster.Config)
	if err != nil {
		return err
	}
	client, err := versioned.NewForConfig(b.cluster.Config)
	if err != nil {
		return err
	}
	const namespace = "bench"
	if err := bench.CreateNamespace(ctx, kube, namespace); err != nil {
		return err
	}
	b.vms = client.CloudnativeV1alpha1().VirtualMachines(namespace)
	b.log, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.vms))
	return err
}

// engineDir is the folder of the machines.
func (b *benchmark) engineDir() string { return filepath.Join(b.temp, "engine") }

// imagesDir is the folder of the guest's image.
func (b *benchmark) imagesDir() string { return filepath.Join(b.temp, "images") }

// startController starts a controller, which is the only one, and waits until it is ready.
func (b *benchmark) startController(ctx context.Context) (*bench.Controller, error) {
	c, err := bench.StartController(ctx, b.Controller, nil,
		"--kubeconfig="+b.cluster.Kubeconfig, "--leader-elect=false", "--metrics-bind-address=0", "--vm-driver=qemu",
		"--qemu-dir="+b.engineDir(), "--qemu-image-dirs="+b.imagesDir(), "--qemu-image="+b.guest,
		"--qemu-accel="+b.Accel, "--qemu-binary="+b.Binary)
	if err != nil {
		return nil, err
	}
	if _, err := bench.Poll(operationTimeout, c.Ready); err != nil {
		return nil, fmt.Errorf("%w; it printed:\n%s", errors.Join(err, c.Stop()), c.Output())
	}
	return c, nil
}

// stopController ends a controller and joins an error of what was done with it.
func stopController(c *bench.Controller, err error) error {
	if err != nil {
		err = fmt.Errorf("%w; the controller printed:\n%s", err, c.Output())
	}
	return errors.Join(err, c.Stop())
}

func (b *benchmark) waitUntilQuiet(ctx context.Context, c *bench.Controller) error {
	return bench.AwaitQuiet(ctx, b.cluster.PID(), c.PID())
}

func (b *benchmark) runMeasurements(ctx context.Context) error {
	c, err := b.startController(ctx)
	if err != nil {
		return err
	}
	if err := stopController(c, b.compareStarts(ctx, c)); err != nil || b.Machines == 0 {
		return err
	}
	return b.measureMemory(ctx)
}

// compareStarts lets both take turns. The order changes, so that what one leaves behind
// affects both.
func (b *benchmark) compareStarts(ctx context.Context, c *bench.Controller) error {
	bench.Logf("Creating the machine whose command line is used")
	m, err := b.newModel(ctx)
	if err != nil {
		return err
	}
	var ours, direct times
	drover := func(n int) error { return ours.addTimes(b.startByDrover(ctx, c, fmt.Sprintf("vm-%d", n))) }
	alone := func(n int) error { return direct.addTimes(b.startDirectly(ctx, c, m, n)) }
	for n := range b.Turns {
		first, second := drover, alone
		if n%2 == 1 {
			first, second = alone, drover
		}
		if err := first(n); err != nil {
			return fmt.Errorf("turn %d: %w", n+1, err)
		}
		if err := second(n); err != nil {
			return fmt.Errorf("turn %d: %w", n+1, err)
		}
		bench.Logf("Turn %d of %d: apply to Active %s, to output %s; alone to an answer %s, to output %s", n+1, b.Turns,
			bench.FormatDuration(ours.up[n]), bench.FormatDuration(ours.output[n]), bench.FormatDuration(direct.up[n]), bench.FormatDuration(direct.output[n]))
	}
	b.report.addComparison(ours, direct)
	return nil
}

// times are those of several turns.
type times struct {
	// up : until VM is Active, or QEMU answers; output : until the guest printed.
	up, output bench.Sample
}

func (t *times) addTimes(up, output time.Duration, err error) error {
	t.up, t.output = append(t.up, up), append(t.output, output)
	return err
}

// firstOutput waits until something is in a file, and returns when that was.
func firstOutput(ctx context.Context, path string) (time.Time, error) {
	for {
		if info, err := os.Stat(path); err == nil && info.Size() > 0 {
			return time.Now(), nil
		}
		if err := bench.Pause(ctx, pollPeriod); err != nil {
			return time.Time{}, fmt.Errorf("waiting for output in %s: %w", path, err)
		}
	}
}

// closeAll ends machines too, which are there only if something failed.
func (b *benchmark) closeAll() (err error) {
	if b.cluster != nil {
		err = b.cluster.Close()
	}
	return errors.Join(err, killProcessesIn(b.temp), os.RemoveAll(b.temp))
}

// killProcessesIn kills the processes that work in a folder below another.
func killProcessesIn(dir string) error {
	if dir == "" {
		return nil
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		cwd, readErr := os.Readlink(link)
		if readErr != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		pid, parseErr := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if parseErr != nil {
			continue
		}
		if killErr := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, killErr)
		}
	}
	return err
}

// createVM makes a small VM.
func (b *benchmark) createVM(ctx context.Context, name string, action api.Action) (*api.VirtualMachine, error) {
	vm := framework.NewVM(name).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64Mi").Action(action).Obj()
	vm.Namespace = ""
	return b.vms.Create(ctx, vm, metav1.CreateOptions{})
}
