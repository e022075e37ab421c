// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// slowVMs is larger than the number of workers of a per-driver controller.
	slowVMs = 32
	// slowDelay is how long each answer of the slow engine takes.
	slowDelay = 5 * time.Second
	// quickVMs is how many of the quick engine's VMs are measured.
	quickVMs = 300
	// blockedTimeout is how long it may take until all workers wait for the slow engine.
	blockedTimeout = 2 * time.Minute
)

// measureSlowEngine measures VMs of the fake engine while the other engine, Docker, takes
// 5 s for every answer and has more VMs to create than its controller has workers. It
// compares them with the same VMs without Docker's.
func (b *benchmark) measureSlowEngine(ctx context.Context) (err error) {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	docker, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	engine := framework.OpenDockerProxy(filepath.Join(w.Temp, "slow.sock"), docker.DaemonHost(), bench.Logf)
	defer engine.Disconnect()
	p, err := w.startDrover(ctx, engine.Env(), "--vm-driver=fake,docker", "--usage-period=1h")
	if err != nil {
		return err
	}
	return p.StopWith(b.measureSlowTurns(ctx, w, engine, p))
}

func (b *benchmark) measureSlowTurns(ctx context.Context, w *environment, engine *framework.DockerProxy, p *bench.Controller) error {
	if err := w.openConnections(ctx, p); err != nil {
		return err
	}
	var beside, alone []round
	err := bench.TakeTurns(b.Runs, func(turn int) error {
		if err := w.blockWorkers(ctx, engine, p, turn); err != nil {
			return err
		}
		err := w.quickRound(ctx, &beside)
		return errors.Join(err, w.unblockWorkers(ctx, engine, p))
	}, func(int) error {
		if err := w.AwaitQuiet(ctx, p); err != nil {
			return err
		}
		return w.quickRound(ctx, &alone)
	})
	if err != nil {
		return err
	}
	for _, f := range roundFigures[:2] { // the times
		figure := func(r round) float64 { return f.of(r, quickVMs) }
		b.report.AddRow("slow", f.what+" beside a slow engine", quickVMs, "ms", bench.Figures(beside, figure)...).
			CompareWith("without the slow one's VMs", bench.Figures(alone, figure)...).RatioAtMost(1.1)
	}
	return nil
}

// quickRound creates and deletes the quick engine's VMs.
func (w *environment) quickRound(ctx context.Context, rounds *[]round) (err error) {
	var r round
	if r.active, err = w.vms.CreateMany(ctx, quickVMs); err != nil {
		return err
	}
	r.gone, err = w.vms.DeleteMany(ctx, quickVMs)
	*rounds = append(*rounds, r)
	return err
}

// blockWorkers makes the engine slow, and gives it VMs until its workers are blocked.
func (w *environment) blockWorkers(ctx context.Context, engine *framework.DockerProxy, p *bench.Controller, turn int) error {
	engine.DelayReplies(slowDelay)
	err := bench.ForEach(ctx, slowVMs, w.benchmark.AtOnce, func(ctx context.Context, n int) error {
		vm := framework.NewVM(fmt.Sprintf("slow-%d-%d", turn, n)).Driver("docker").Namespace("").Obj()
		_, err := w.idle.Create(ctx, vm, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	_, err = bench.Poll(blockedTimeout, func() error { return checkBlocked(ctx, p) })
	return err
}

// checkBlocked returns nil if all workers of the slow engine's VMs are at work.
func checkBlocked(ctx context.Context, p *bench.Controller) error {
	page, err := p.Metrics(ctx)
	if busy := page.Sum("controller_runtime_active_workers", `controller="virtualmachine-docker"`); err == nil && busy < noopWorkers {
		err = fmt.Errorf("%v workers wait for the engine: nothing is measured", busy)
	}
	return err
}

// unblockWorkers makes the engine quick again and removes its VMs.
func (w *environment) unblockWorkers(ctx context.Context, engine *framework.DockerProxy, p *bench.Controller) error {
	err := checkBlocked(ctx, p)
	engine.Restore()
	_, goneErr := bench.WaitForAll(ctx, bench.WatchVMs(w.idle), slowVMs, bench.IsGone[*api.VirtualMachine], func(ctx context.Context) error {
		return w.idle.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	return errors.Join(err, goneErr)
}
