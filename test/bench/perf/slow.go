// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// slowVMs is larger than the number of workers of a per-driver controller.
	slowVMs = 32
	// slowWorkers is how many workers may work for one namespace: three quarters.
	slowWorkers = noopWorkers * 3 / 4
	// slowDelay is how long each answer of the slow engine takes.
	slowDelay = 5 * time.Second
	// blockedTimeout is how long it may take until all workers wait for the slow engine.
	blockedTimeout = 2 * time.Minute
)

// measureSlowEngine measures VMs of the fake engine while another engine, Docker, takes 5 s
// for every answer and has more VMs to create than its controller has workers. It compares
// this with the times without VMs of Docker.
func measureSlowEngine(ctx context.Context, e *bench.Environment, docker *engine) error {
	e.Idle.New = func(name string) *api.VirtualMachine {
		return framework.NewVM(name).Driver("docker").Namespace("").Obj()
	}
	proxy := framework.OpenDockerProxy(filepath.Join(e.Temp, "slow.sock"), docker.DaemonHost(), bench.Logf)
	defer proxy.Disconnect()
	p, err := e.StartController(ctx, proxy.Env(), "--vm-driver=fake,docker", dockerImage, "--usage-period=1h")
	if err != nil {
		return err
	}
	if err := openConnections(ctx, e, p); err != nil {
		return p.StopWith(err)
	}
	for _, n := range e.Sizes {
		err = errors.Join(err, measureSlowTurns(ctx, e, proxy, p, n))
	}
	return p.StopWith(err)
}

func measureSlowTurns(ctx context.Context, e *bench.Environment, proxy *framework.DockerProxy, p *bench.Controller, n int) error {
	var beside, alone []round
	err := bench.TakeTurns(e.Turns, func(int) error {
		if err := blockWorkers(ctx, e, proxy, p); err != nil {
			return err
		}
		err := quickRound(ctx, e, n, &beside)
		return errors.Join(err, unblockWorkers(ctx, e, proxy, p))
	}, func(int) error {
		if err := e.AwaitQuiet(ctx, p); err != nil {
			return err
		}
		return quickRound(ctx, e, n, &alone)
	})
	if err != nil {
		return err
	}
	for _, f := range roundFigures[:2] { // only the times
		figure := func(r round) float64 { return f.of(r, n) }
		e.AddRow(f.what+" beside a slow engine", n, "ms", bench.Figures(beside, figure)...).
			CompareWith("without the slow one's VMs", bench.Figures(alone, figure)...).RatioAtMost(1.1)
	}
	return nil
}

// quickRound creates and deletes VMs of the quick engine.
func quickRound(ctx context.Context, e *bench.Environment, n int, rounds *[]round) (err error) {
	var r round
	if r.active, err = e.VMs.CreateMany(ctx, n); err != nil {
		return err
	}
	r.gone, err = e.VMs.DeleteMany(ctx, n)
	*rounds = append(*rounds, r)
	return err
}

// blockWorkers makes Docker slow, and creates VMs until its workers are blocked.
func blockWorkers(ctx context.Context, e *bench.Environment, proxy *framework.DockerProxy, p *bench.Controller) error {
	proxy.DelayReplies(slowDelay)
	if err := e.Idle.Each(ctx, slowVMs, (*bench.VMs).CreateNth); err != nil {
		return err
	}
	_, err := bench.Poll(blockedTimeout, func() error { return checkBlocked(ctx, p) })
	return err
}

// checkBlocked returns nil if as many workers as possible are busy with VMs of the slow engine.
func checkBlocked(ctx context.Context, p *bench.Controller) error {
	page, err := p.Metrics(ctx)
	if busy := page.Sum("controller_runtime_active_workers", `controller="virtualmachine-docker"`); err == nil && busy < slowWorkers {
		err = fmt.Errorf("%v workers wait for the engine: nothing is measured", busy)
	}
	return err
}

// unblockWorkers makes Docker quick again and deletes its VMs.
func unblockWorkers(ctx context.Context, e *bench.Environment, proxy *framework.DockerProxy, p *bench.Controller) error {
	err := checkBlocked(ctx, p)
	proxy.Restore()
	_, goneErr := e.Idle.DeleteMany(ctx, slowVMs)
	return errors.Join(err, goneErr)
}
