// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qemu measures how long a QEMU machine takes from kubectl apply until it is Active and until
// its guest prints something, and compares it with the same QEMU command line started directly. It
// also measures how much memory a controller needs for a machine.
//
// Start with Suites in suite.go, which measures Drover. direct.go measures QEMU alone, and memory.go
// the controller's memory. Their guest is one boot sector, which prints as soon as the BIOS is done.
// image.go measures machines of a container image and commands in them, and network.go their network.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// operationTimeout bounds every single operation.
	operationTimeout = 2 * time.Minute
	// pollPeriod is the time between checks for the guest's output.
	pollPeriod = time.Millisecond
)

// Suites are the suites of this package.
var Suites = []bench.Suite{
	{Name: "qemu", Turns: 20, Measure: bench.In(framework.ClusterOptions{}, withGuest((*benchmark).compareStarts))},
	{Name: "qemu-memory", Turns: 5, VMs: []int{20}, Measure: bench.In(framework.ClusterOptions{}, withGuest((*benchmark).measureMemory))},
	{Name: "qemu-image", Turns: 10, Measure: measureImage},
	{Name: "network", Turns: 3, Measure: measureNetwork},
}

// benchmark is one run.
type benchmark struct {
	*bench.Environment
	// engine is the folder of the machines.
	engine string
	log    *bench.Log[*api.VirtualMachine]
	args   []string // of a controller
	// quiet waits until the measured programs are at rest.
	quiet func(context.Context) error
}

// withGuest prepares a measurement: the guest's image, and a log of the VMs.
func withGuest(measure func(*benchmark, context.Context) error) func(context.Context, *bench.Environment) error {
	return func(ctx context.Context, e *bench.Environment) (err error) {
		images := filepath.Join(e.Temp, "images")
		guest := filepath.Join(images, "guest.img")
		b := &benchmark{Environment: e, engine: filepath.Join(e.Temp, "engine")}
		b.args = []string{
			"--metrics-bind-address=0", "--vm-driver=qemu", "--qemu-dir=" + b.engine, "--qemu-image-dirs=" + images, "--qemu-image=" + guest,
		}
		// Machines are left at the end only after a failure.
		defer func() { err = errors.Join(err, killProcessesIn(b.Temp)) }()
		b.VMs.AtOnce = parallelMachines
		b.VMs.New = func(name string) *api.VirtualMachine {
			return framework.NewVM(name).Namespace("").Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "64Mi").Obj()
		}
		if err := os.Mkdir(images, 0o700); err != nil {
			return err
		}
		if err := framework.AssembleBootGuest(ctx, guest); err != nil {
			return err
		}
		if b.log, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.VMs)); err != nil {
			return err
		}
		return measure(b, ctx)
	}
}

// compareStarts compares machines of Drover with machines that are started directly.
func (b *benchmark) compareStarts(ctx context.Context) error {
	var ours, alone times
	if err := b.WithController(ctx, func(c *bench.Controller) (err error) {
		b.quiet = func(ctx context.Context) error { return b.AwaitQuiet(ctx, c) }
		m, err := b.newModel(ctx)
		if err == nil {
			ours, alone, err = b.takeTurns(ctx, m)
		}
		return err
	}, b.args...); err != nil {
		return err
	}
	b.reportTimes("apply to Active", ours.up, "start to an answer by QMP", alone.up)
	b.reportTimes("apply to the guest's first output", ours.output, "start to the guest's first output", alone.output)
	return nil
}

// takeTurns starts and ends machines alternately with Drover and directly.
func (b *benchmark) takeTurns(ctx context.Context, m model) (ours, alone times, err error) {
	return ours, alone, bench.TakeTurns(b.Turns, func(turn int) error {
		vm, active, output, err := b.startByDrover(ctx, fmt.Sprintf("vm-%d", turn))
		if err == nil {
			err = b.deleteVM(ctx, vm.Name)
		}
		return ours.addTimes(active, output, err)
	}, func(turn int) error {
		d, answers, output, err := b.startDirectly(ctx, m, turn)
		if err == nil {
			err = d.end()
		}
		return alone.addTimes(answers, output, err)
	})
}

// aim bounds the median difference between a start by Drover and a start of QEMU alone,
// in ms.
const aim = 100

func (b *benchmark) reportTimes(what string, ours []float64, beside string, alone []float64) {
	b.AddRow(what, 1, "ms", ours...).CompareWith(beside, alone...)
	b.AddDifference(what+", longer than QEMU alone", 1, "ms", ours, alone).AtMost(aim)
}

// times has the durations of several turns, in ms.
type times struct {
	// up is the time until the VM is Active or QEMU answers, and output the time until the guest prints something.
	up, output []float64
}

func (t *times) addTimes(up, output time.Duration, err error) error {
	t.up, t.output = append(t.up, bench.Milliseconds(up)), append(t.output, bench.Milliseconds(output))
	return err
}

// firstOutput waits until the console or the command of the machine in a folder has printed something, and
// returns the time.
func firstOutput(ctx context.Context, dir string) (time.Time, error) {
	for {
		for _, name := range []string{machine.SerialLogFile, output.FileNames[output.Stdout]} {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Size() > 0 {
				return time.Now(), nil
			}
		}
		if err := bench.Pause(ctx, pollPeriod); err != nil {
			return time.Time{}, fmt.Errorf("waiting for output in %s: %w", dir, err)
		}
	}
}

// killProcessesIn kills the processes whose working directory is below a folder.
func killProcessesIn(dir string) error {
	all, err := procfs.AllProcs()
	for _, p := range all {
		if cwd, _ := p.Cwd(); !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if killErr := syscall.Kill(p.PID, syscall.SIGKILL); !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, killErr)
		}
	}
	return err
}

// startByDrover creates a VM, and waits until it is Active and its guest has printed something.
func (b *benchmark) startByDrover(ctx context.Context, name string) (vm *api.VirtualMachine, active, output time.Duration, err error) {
	if err := b.quiet(ctx); err != nil {
		return nil, 0, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, errors.New("the machine was not ready in time"))
	defer cancel()
	from, begin := b.log.Len(), time.Now()
	if vm, err = b.createVM(ctx, name, api.ActionActive); err != nil {
		return nil, 0, 0, err
	}
	printed, err := firstOutput(ctx, b.folderOf(vm))
	if err != nil {
		return nil, 0, 0, err
	}
	up, err := b.waitForPhase(ctx, from, name, api.PhaseActive)
	return vm, up.Sub(begin), printed.Sub(begin), err
}

// createVM creates a VM with an action. With ActionPaused its guest does not run at all.
func (b *benchmark) createVM(ctx context.Context, name string, action api.Action) (*api.VirtualMachine, error) {
	vm := b.VMs.New(name)
	vm.Spec.Action = action
	return b.VMs.Create(ctx, vm, metav1.CreateOptions{})
}

// waitForPhase waits until a VM is in a phase, and returns the time.
func (b *benchmark) waitForPhase(ctx context.Context, from int, name string, phase api.Phase) (time.Time, error) {
	e, err := b.log.Await(ctx, from, func(e bench.Event[*api.VirtualMachine]) bool {
		return e.Object.Name == name && e.Object.Status.Phase == phase
	})
	return e.At, err
}

// deleteVM deletes a VM and waits until it is gone.
func (b *benchmark) deleteVM(ctx context.Context, name string) error {
	from := b.log.Len()
	if err := b.VMs.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := b.log.Await(ctx, from, func(e bench.Event[*api.VirtualMachine]) bool {
		return e.Object.Name == name && e.Type == watch.Deleted
	})
	return err
}
