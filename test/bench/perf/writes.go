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
	do    func(w *world, ctx context.Context, n int) error
	until func(watch.Event, *api.VirtualMachine) bool
	most  float64
	slow  float64
}

var actions = []action{
	{"create", (*world).makeOne, isActive, 2, 1},
	{"stop", edit(`{"spec":{"action":"stopped"}}`), isPhase(api.PhaseStopped), 1, 2},
	{"start", edit(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"pause", edit(`{"spec":{"action":"paused"}}`), isPhase(api.PhasePaused), 1, 1},
	{"resume", edit(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"restart", edit(`{"spec":{"restartedAt":"2026-01-01T00:00:00Z"}}`), isRestarted, 2, 3},
	{"delete", (*world).deleteOne, isGone, 1, 2},
}

// writes counts what each action writes to VMs in the API. Usage is not sampled
// meanwhile, because its first sample is one more write, at any time.
func (b *benchmark) writes(ctx context.Context) error {
	w, err := b.world(ctx)
	if err != nil {
		return err
	}
	for _, d := range []struct {
		driver string
		vms    int
		slow   bool
	}{{"fake", 100, false}, {"docker", min(10, b.DockerVMs), true}} {
		p, err := w.drover(ctx, nil, "--vm-driver="+d.driver, "--usage-period=1h")
		if err == nil {
			err = p.stop(b.writesOf(ctx, w, p, d.driver, d.vms, d.slow))
		}
		if err != nil {
			return fmt.Errorf("driver %s: %w", d.driver, err)
		}
	}
	return nil
}

func (b *benchmark) writesOf(ctx context.Context, w *world, p *process, driver string, vms int, slow bool) error {
	for _, a := range actions {
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		before, err := w.count(ctx, p, false)
		if err != nil {
			return err
		}
		if err := w.act(ctx, a, vms); err != nil {
			return fmt.Errorf("%s: %w", a.what, err)
		}
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		after, err := w.count(ctx, p, true)
		if err != nil {
			return err
		}
		most := a.most
		if slow {
			most += a.slow
		}
		users := float64(vms)
		b.report.add("writes", driver+": "+a.what, vms, "writes per VM", (after.writes-before.writes-users)/users).
			atMost("writes", most)
		b.report.add("writes", driver+": "+a.what+", calls of the driver", vms, "calls per VM", (after.calls-before.calls)/users)
	}
	return nil
}

// act applies it to VMs, and waits for the result and a while longer.
func (w *world) act(ctx context.Context, a action, vms int) error {
	if _, err := w.until(ctx, vms, a.until, func(ctx context.Context) error {
		return bench.Each(ctx, vms, w.b.AtOnce, func(ctx context.Context, n int) error { return a.do(w, ctx, n) })
	}); err != nil {
		return err
	}
	return bench.Pause(ctx, 2*time.Second)
}

func (w *world) makeOne(ctx context.Context, n int) error {
	return bench.CreateVM(ctx, w.vms, bench.NameOf(n))
}

func (w *world) deleteOne(ctx context.Context, n int) error {
	return w.vms.Delete(ctx, bench.NameOf(n), metav1.DeleteOptions{})
}

func edit(change string) func(*world, context.Context, int) error {
	return func(w *world, ctx context.Context, n int) error {
		_, err := w.vms.Patch(ctx, bench.NameOf(n), types.MergePatchType, []byte(change), metav1.PatchOptions{})
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
