// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// slowVMs is larger than the number of workers of a per-driver controller.
	slowVMs = 32
	// slowDelay is how long each call of the slow engine takes.
	slowDelay = 5 * time.Second
	// quickVMs is how many of the quick engine's VMs are measured.
	quickVMs = 300
)

// measureSlowEngine measures VMs of the fake engine while the other engine, Docker, takes
// 5 s for every call and has more VMs to create than its controller has workers. It
// compares them with the same VMs without Docker's.
func (b *benchmark) measureSlowEngine(ctx context.Context) (err error) {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	engine, err := newSlowEngine(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.close()) }()
	p, err := w.startDrover(ctx, engine.environmentVariables(), "--vm-driver=fake,docker", "--usage-period=1h")
	if err != nil {
		return err
	}
	return p.stopWith(b.measureSlowTurns(ctx, w, engine, p))
}

func (b *benchmark) measureSlowTurns(ctx context.Context, w *environment, engine *slowEngine, p *process) error {
	var beside, alone []round
	if _, err := w.runRound(ctx, p, quickVMs, nil); err != nil { // connections, caches
		return err
	}
	err := takeTurns(b.Runs, func(turn int) (err error) {
		if err := engine.blockWorkers(ctx, w, turn); err != nil {
			return err
		}
		beside, err = w.quickRound(ctx, beside)
		return errors.Join(err, engine.unblockWorkers(ctx, w))
	}, func(int) (err error) {
		if err := w.waitUntilQuiet(ctx, p); err != nil {
			return err
		}
		alone, err = w.quickRound(ctx, alone)
		return err
	})
	if err != nil {
		return err
	}
	const name = "without the slow one's VMs"
	active := func(r round) float64 { return toMilliseconds(r.active) }
	gone := func(r round) float64 { return toMilliseconds(r.gone) }
	b.report.addRow("slow", "create to Active beside a slow engine", quickVMs, "ms", selectFigures(beside, active)...).
		compareWith(name, selectFigures(alone, active)...).ratioAtMost("slow", 1.1)
	b.report.addRow("slow", "delete all beside a slow engine", quickVMs, "ms", selectFigures(beside, gone)...).
		compareWith(name, selectFigures(alone, gone)...).ratioAtMost("slow", 1.1)
	return nil
}

// quickRound creates and deletes the quick engine's VMs.
func (w *environment) quickRound(ctx context.Context, rounds []round) (_ []round, err error) {
	var r round
	if r.active, err = w.createVMs(ctx, quickVMs); err != nil {
		return rounds, err
	}
	r.gone, err = w.deleteVMs(ctx, quickVMs)
	return append(rounds, r), err
}

// slowEngine is a proxy of the Docker engine on which every request takes long.
type slowEngine struct {
	path   string
	server *http.Server
	delay  atomic.Int64
	held   atomic.Int64 // requests that are held at the moment
}

func newSlowEngine(ctx context.Context, w *environment) (*slowEngine, error) {
	docker, err := framework.OpenDockerClient()
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(docker.DaemonHost())
	if err != nil {
		return nil, err
	}
	e := &slowEngine{path: filepath.Join(w.temp, "slow.sock")}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", e.path)
	if err != nil {
		return nil, err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	proxy.FlushInterval = -1 // events
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, target.Scheme, target.Path+target.Host)
	}}
	e.server = &http.Server{ReadHeaderTimeout: requestTimeout, Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		e.delayRequest(in.Context())
		proxy.ServeHTTP(out, in)
	})}
	go func() { _ = e.server.Serve(listener) }()
	return e, nil
}

func (e *slowEngine) delayRequest(ctx context.Context) {
	e.held.Add(1)
	defer e.held.Add(-1)
	_ = bench.Pause(ctx, time.Duration(e.delay.Load()))
}

// environmentVariables makes a program use this proxy.
func (e *slowEngine) environmentVariables() []string { return []string{"DOCKER_HOST=unix://" + e.path} }

func (e *slowEngine) close() error { return e.server.Close() }

// blockWorkers makes the engine slow, and gives it VMs until its workers are blocked.
func (e *slowEngine) blockWorkers(ctx context.Context, w *environment, turn int) error {
	e.delay.Store(int64(slowDelay))
	err := bench.ForEach(ctx, slowVMs, w.benchmark.AtOnce, func(ctx context.Context, n int) error {
		vm := framework.NewVM(fmt.Sprintf("slow-%d-%d", turn, n)).Driver("docker").Namespace("").Obj()
		_, err := w.vmsIn(idleNamespace).Create(ctx, vm, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	_, err = bench.Poll(minTimeout, func() error {
		if held := e.held.Load(); held < noopWorkers {
			return fmt.Errorf("the engine holds %d calls", held)
		}
		return nil
	})
	return err
}

// unblockWorkers makes the engine quick again and removes its VMs.
func (e *slowEngine) unblockWorkers(ctx context.Context, w *environment) error {
	if e.held.Load() == 0 {
		return errors.New("the slow engine held no call at the end: nothing was measured")
	}
	e.delay.Store(0)
	idle := *w
	idle.vms = w.vmsIn(idleNamespace)
	_, err := idle.waitForAll(ctx, slowVMs, isGone, func(ctx context.Context) error {
		return idle.vms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	return err
}
