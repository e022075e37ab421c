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

// lateWriteTime is how long writes are still counted after an action has completed.
const lateWriteTime = 2 * time.Second

// action is an action of a user on VMs, and its result.
type action struct {
	what  string
	do    bench.Step
	until bench.Match[*api.VirtualMachine]
	// maxWrites is the maximum number of writes if all steps are fast. Each step that takes longer than 100 ms
	// adds one write, and slowSteps is how many steps may: a stop has two, the signal and the guest's reaction.
	maxWrites, slowSteps float64
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

// measureWrites counts the writes to VMs in the API for each action. Usage is not sampled,
// because its first sample would add a write at an unpredictable time.
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
					userWrites := float64(d.vms) // one for each VM
					e.AddRow(d.driver+": "+a.what, d.vms, "writes per VM", (took.writes-userWrites)/userWrites).AtMost(a.maxWrites + d.slow*a.slowSteps)
				}
				return nil
			}, "--vm-driver="+d.driver, dockerImage, "--usage-period=1h"); err != nil {
				return err
			}
		}
	}
	return nil
}

// countAction counts the writes of an action, including late ones.
func countAction(ctx context.Context, e *bench.Environment, p *bench.Controller, a action, vms int) (costs, error) {
	if err := e.AwaitQuiet(ctx, p); err != nil {
		return costs{}, err
	}
	return measureCosts(ctx, e, p, func() error {
		_, err := e.VMs.EachUntil(ctx, vms, a.until, a.do)
		if err == nil {
			err = bench.Pause(ctx, lateWriteTime)
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

// vmWrites returns the number of all writes to VMs, including users' writes.
func vmWrites(page framework.Metrics) (sum float64) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		sum += page.Sum("apiserver_request_total", fmt.Sprintf("verb=%q", verb), `resource="virtualmachines"`)
	}
	return sum
}

// costs are the costs of an operation: writes to the API, calls of the driver, seconds of CPU time, and bytes.
type costs struct{ writes, calls, cpu, allocated float64 }

// measureCosts returns the costs of an operation. The CPU time does not include reading the metrics.
func measureCosts(ctx context.Context, e *bench.Environment, p *bench.Controller, do func() error) (costs, error) {
	before, err := readCosts(ctx, e, p)
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
	after, readErr := readCosts(ctx, e, p)
	return costs{
		after.writes - before.writes, after.calls - before.calls, (end - begin).Seconds(), after.allocated - before.allocated,
	}, errors.Join(err, readErr)
}

// readCosts returns the costs so far, without the CPU time.
func readCosts(ctx context.Context, e *bench.Environment, p *bench.Controller) (costs, error) {
	api, err := e.ReadAPIMetrics(ctx)
	own, ownErr := p.Metrics(ctx)
	return costs{
		writes: vmWrites(api), calls: own.Sum("drover_driver_call_duration_seconds_count"),
		allocated: own.Sum("go_memstats_alloc_bytes_total"),
	}, errors.Join(err, ownErr)
}
