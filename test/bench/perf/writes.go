// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
)

// lateWrites is how long after an action's result it may still write.
const lateWrites = 2 * time.Second

// action is what a user does to VMs, its result, and how many writes it may take.
// slow is how many of its steps may take longer than 100 ms: a stop has two, the
// signal and the guest's reaction.
type action struct {
	what       string
	do         func(v *bench.VMs, ctx context.Context, n int) error
	until      bench.Match[*api.VirtualMachine]
	most, slow float64
}

var actions = []action{
	{"create", (*bench.VMs).CreateNth, bench.IsActive, 2, 1},
	{"stop", patchFunc(`{"spec":{"action":"stopped"}}`), isPhase(api.PhaseStopped), 1, 2},
	{"start", patchFunc(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"pause", patchFunc(`{"spec":{"action":"paused"}}`), isPhase(api.PhasePaused), 1, 1},
	{"resume", patchFunc(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"restart", patchFunc(`{"spec":{"restartedAt":"2026-01-01T00:00:00Z"}}`), isRestarted, 2, 3},
	{"delete", (*bench.VMs).DeleteNth, bench.IsGone[*api.VirtualMachine], 1, 2},
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
		isSlow bool
	}{{"fake", 100, false}, {"docker", min(10, b.DockerVMs), true}} {
		p, err := w.startDrover(ctx, nil, "--vm-driver="+d.driver, "--usage-period=1h")
		if err != nil {
			return err
		}
		for _, a := range actions {
			most := a.most
			if d.isSlow {
				most += a.slow
			}
			took, err := w.countAction(ctx, p, a, d.vms)
			if err != nil {
				return p.StopWith(fmt.Errorf("driver %s: %s: %w", d.driver, a.what, err))
			}
			users := float64(d.vms)
			b.report.AddRow("writes", d.driver+": "+a.what, d.vms, "writes per VM", (took.writes-users)/users).AtMost(most)
		}
		if err := p.StopWith(nil); err != nil {
			return err
		}
	}
	return nil
}

// countAction counts what an action writes until a while after its result.
func (w *environment) countAction(ctx context.Context, p *bench.Controller, a action, vms int) (counts, error) {
	if err := w.AwaitQuiet(ctx, p); err != nil {
		return counts{}, err
	}
	return w.countDuring(ctx, p, func() error {
		_, err := w.vms.EachUntil(ctx, vms, a.until, func(ctx context.Context, n int) error { return a.do(w.vms, ctx, n) })
		if err == nil {
			err = bench.Pause(ctx, lateWrites)
		}
		return errors.Join(err, w.AwaitQuiet(ctx, p))
	})
}

func patchFunc(change string, sub ...string) func(*bench.VMs, context.Context, int) error {
	return func(v *bench.VMs, ctx context.Context, n int) error {
		_, err := v.Patch(ctx, bench.VMName(n), types.MergePatchType, []byte(change), metav1.PatchOptions{}, sub...)
		return err
	}
}

func isPhase(phase api.Phase) bench.Match[*api.VirtualMachine] {
	return func(_ watch.EventType, vm *api.VirtualMachine) bool {
		return vm.Status.Phase == phase && vm.Status.ObservedGeneration == vm.Generation
	}
}

func isRestarted(e watch.EventType, vm *api.VirtualMachine) bool {
	return isPhase(api.PhaseActive)(e, vm) && vm.Status.RestartedAt.Equal(vm.Spec.RestartedAt)
}
