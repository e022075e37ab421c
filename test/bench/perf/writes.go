// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

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
	"cloudnative.tw/drover/test/framework"
)

// lateWrites is how long after an action's result it may still write.
const lateWrites = 2 * time.Second

// action is an action of a user on VMs, its result, and how many writes it may take.
// slow is how many of its steps may take longer than 100 ms: a stop has two, the
// signal and the guest's reaction.
type action struct {
	what       string
	do         bench.Step
	until      bench.Match[*api.VirtualMachine]
	most, slow float64
}

var actions = []action{
	{"create", (*bench.VMs).CreateNth, bench.IsActive, 2, 1},
	{"stop", patchWith(`{"spec":{"action":"stopped"}}`), isPhase(api.PhaseStopped), 1, 2},
	{"start", patchWith(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"pause", patchWith(`{"spec":{"action":"paused"}}`), isPhase(api.PhasePaused), 1, 1},
	{"resume", patchWith(`{"spec":{"action":"active"}}`), isPhase(api.PhaseActive), 1, 1},
	{"restart", patchWith(`{"spec":{"restartedAt":"2026-01-01T00:00:00Z"}}`), isRestarted, 2, 3},
	{"delete", (*bench.VMs).DeleteNth, bench.IsGone[*api.VirtualMachine], 1, 2},
}

// measureWrites counts what each action writes to VMs in the API. Usage is not sampled
// meanwhile, because its first sample is one more write, at any time.
func measureWrites(ctx context.Context, e *bench.Environment, _ *engine) error {
	for _, n := range e.Sizes {
		for _, d := range []struct {
			driver string
			vms    int
			slow   float64
		}{{"fake", n, 0}, {"docker", max(1, n/10), 1}} {
			if err := e.WithController(ctx, func(p *bench.Controller) error {
				for _, a := range actions {
					took, err := countAction(ctx, e, p, a, d.vms)
					if err != nil {
						return fmt.Errorf("driver %s: %s: %w", d.driver, a.what, err)
					}
					users := float64(d.vms)
					e.AddRow(d.driver+": "+a.what, d.vms, "writes per VM", (took.writes-users)/users).AtMost(a.most + d.slow*a.slow)
				}
				return nil
			}, "--vm-driver="+d.driver, dockerImage, "--usage-period=1h"); err != nil {
				return err
			}
		}
	}
	return nil
}

// countAction counts what an action writes until a while after its result.
func countAction(ctx context.Context, e *bench.Environment, p *bench.Controller, a action, vms int) (counts, error) {
	if err := e.AwaitQuiet(ctx, p); err != nil {
		return counts{}, err
	}
	return countDuring(ctx, e, p, func() error {
		_, err := e.VMs.EachUntil(ctx, vms, a.until, a.do)
		if err == nil {
			err = bench.Pause(ctx, lateWrites)
		}
		return errors.Join(err, e.AwaitQuiet(ctx, p))
	})
}

func patchWith(change string, sub ...string) bench.Step {
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

// vmWrites counts the API server's writes to VMs, users' among them.
func vmWrites(page framework.Metrics) (sum float64) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		sum += page.Sum("apiserver_request_total", fmt.Sprintf("verb=%q", verb), `resource="virtualmachines"`)
	}
	return sum
}

// counts are the costs of a controller.
type counts struct{ writes, calls, cpu, allocated float64 }

// countDuring returns what an operation costs. Reading is not counted into the CPU time.
func countDuring(ctx context.Context, e *bench.Environment, p *bench.Controller, do func() error) (counts, error) {
	before, err := readCounts(ctx, e, p)
	if err != nil {
		return before, err
	}
	begin, err := bench.CPUTime(p.PID())
	if err == nil {
		err = do()
	}
	if err != nil {
		return before, err
	}
	end, err := bench.CPUTime(p.PID())
	after, readErr := readCounts(ctx, e, p)
	return counts{
		after.writes - before.writes, after.calls - before.calls, (end - begin).Seconds(), after.allocated - before.allocated,
	}, errors.Join(err, readErr)
}

func readCounts(ctx context.Context, e *bench.Environment, p *bench.Controller) (counts, error) {
	api, err := e.ReadAPIMetrics(ctx)
	own, ownErr := p.Metrics(ctx)
	return counts{
		writes: vmWrites(api), calls: own.Sum("drover_driver_call_duration_seconds_count"),
		allocated: own.Sum("go_memstats_alloc_bytes_total"),
	}, errors.Join(err, ownErr)
}
