// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
)

// action is what a user does to VMs, its result, and how many writes it may take.
// slow is how many of its steps may take longer than 100 ms: a stop has two, the
// signal and the guest's reaction.
type action struct {
	what  string
	do    func(w *environment, ctx context.Context, n int) error
	until func(watch.Event, *api.VirtualMachine) bool
	most  float64
	slow  float64
}

var actions = []action{
	{"create", (*environment).createNth, isActive, 2, 1},
	{"stop", patchFunc(`{"spec":{"action":"stopped"}}`), isPhase(api.PhaseStopped), 1, 2},
	{"start", patchFunc(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"pause", patchFunc(`{"spec":{"action":"paused"}}`), isPhase(api.PhasePaused), 1, 1},
	{"resume", patchFunc(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"restart", patchFunc(`{"spec":{"restartedAt":"2026-01-01T00:00:00Z"}}`), isRestarted, 2, 3},
	{"delete", (*environment).deleteNth, isGone, 1, 2},
}

// measureWrites counts what each action writes to VMs in the API. Usage is not sampled
// meanwhile, because its first sample is one more write, at any time.
func (b *benchmark) measureWrites(ctx context.Context) error {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	for _, d := range []struct {
		driver string
		vms    int
		slow   bool
	}{{"fake", 100, false}, {"docker", min(10, b.DockerVMs), true}} {
		p, err := w.startDrover(ctx, nil, "--vm-driver="+d.driver, "--usage-period=1h")
		if err == nil {
			err = p.stopWith(b.measureWritesOf(ctx, w, p, d.driver, d.vms, d.slow))
		}
		if err != nil {
			return fmt.Errorf("driver %s: %w", d.driver, err)
		}
	}
	return nil
}

func (b *benchmark) measureWritesOf(ctx context.Context, w *environment, p *process, driver string, vms int, slow bool) error {
	for _, a := range actions {
		if err := w.waitUntilQuiet(ctx, p); err != nil {
			return err
		}
		before, err := w.readCounts(ctx, p, false)
		if err != nil {
			return err
		}
		if err := w.applyAction(ctx, a, vms); err != nil {
			return fmt.Errorf("%s: %w", a.what, err)
		}
		if err := w.waitUntilQuiet(ctx, p); err != nil {
			return err
		}
		after, err := w.readCounts(ctx, p, true)
		if err != nil {
			return err
		}
		most := a.most
		if slow {
			most += a.slow
		}
		users := float64(vms)
		b.report.addRow("writes", driver+": "+a.what, vms, "writes per VM", (after.writes-before.writes-users)/users).
			atMost("writes", most)
		b.report.addRow("writes", driver+": "+a.what+", calls of the driver", vms, "calls per VM", (after.calls-before.calls)/users)
	}
	return nil
}

// applyAction applies it to VMs, and waits for the result and a while longer.
func (w *environment) applyAction(ctx context.Context, a action, vms int) error {
	if _, err := w.waitForAll(ctx, vms, a.until, func(ctx context.Context) error {
		return bench.ForEach(ctx, vms, w.benchmark.AtOnce, func(ctx context.Context, n int) error { return a.do(w, ctx, n) })
	}); err != nil {
		return err
	}
	return bench.Pause(ctx, 2*time.Second)
}

func (w *environment) createNth(ctx context.Context, n int) error {
	return bench.CreateVM(ctx, w.vms, bench.VMName(n))
}

func (w *environment) deleteNth(ctx context.Context, n int) error {
	return w.vms.Delete(ctx, bench.VMName(n), metav1.DeleteOptions{})
}

func patchFunc(change string) func(*environment, context.Context, int) error {
	return func(w *environment, ctx context.Context, n int) error {
		_, err := w.vms.Patch(ctx, bench.VMName(n), types.MergePatchType, []byte(change), metav1.PatchOptions{})
		return err
	}
}

func isPhase(phase api.Phase) func(watch.Event, *api.VirtualMachine) bool {
	return func(_ watch.Event, vm *api.VirtualMachine) bool {
		return vm.Status.Phase == phase && vm.Status.ObservedGeneration == vm.Generation
	}
}

func isRestarted(e watch.Event, vm *api.VirtualMachine) bool {
	return isPhase(api.PhaseActive)(e, vm) && vm.Status.RestartedAt.Equal(vm.Spec.RestartedAt)
}
