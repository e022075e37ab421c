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
	"cloudnative.tw/drover/test/vmtest"
)

const (
	// slowVMs is larger than the number of workers of a per-driver controller.
	slowVMs = 32
	// slowDelay is how long each call of the slow engine takes.
	slowDelay = 5 * time.Second
	// quickVMs is how many of the quick engine's VMs are measured.
	quickVMs = 300
)

// slow measures VMs of the fake engine while the other engine, Docker, takes 5 s for
// every call and has more VMs to create than its controller has workers. It compares
// them with the same VMs without Docker's.
func (b *benchmark) slow(ctx context.Context) (err error) {
	w, err := b.world(ctx)
	if err != nil {
		return err
	}
	engine, err := newSlowEngine(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.close()) }()
	p, err := w.drover(ctx, engine.env(), "--vm-driver=fake,docker", "--usage-period=1h")
	if err != nil {
		return err
	}
	return p.stop(b.slowTurns(ctx, w, engine, p))
}

func (b *benchmark) slowTurns(ctx context.Context, w *world, engine *slowEngine, p *process) error {
	var beside, alone []round
	if _, err := w.round(ctx, p, quickVMs, nil); err != nil { // connections, caches
		return err
	}
	err := takeTurns(b.Runs, func(turn int) (err error) {
		if err := engine.load(ctx, w, turn); err != nil {
			return err
		}
		beside, err = w.quickRound(ctx, beside)
		return errors.Join(err, engine.unload(ctx, w))
	}, func(int) (err error) {
		if err := w.quiet(ctx, p); err != nil {
			return err
		}
		alone, err = w.quickRound(ctx, alone)
		return err
	})
	if err != nil {
		return err
	}
	const name = "without the slow one's VMs"
	active := func(r round) float64 { return milliseconds(r.active) }
	gone := func(r round) float64 { return milliseconds(r.gone) }
	b.report.add("slow", "create to Active beside a slow engine", quickVMs, "ms", each(beside, active)...).
		beside(name, each(alone, active)...).ratioAtMost("slow", 1.1)
	b.report.add("slow", "delete all beside a slow engine", quickVMs, "ms", each(beside, gone)...).
		beside(name, each(alone, gone)...).ratioAtMost("slow", 1.1)
	return nil
}

// quickRound creates and deletes the quick engine's VMs.
func (w *world) quickRound(ctx context.Context, rounds []round) (_ []round, err error) {
	var r round
	if r.active, err = w.create(ctx, quickVMs); err != nil {
		return rounds, err
	}
	r.gone, err = w.delete(ctx, quickVMs)
	return append(rounds, r), err
}

// slowEngine is a proxy of the Docker engine on which every request takes long.
type slowEngine struct {
	path   string
	server *http.Server
	delay  atomic.Int64
	held   atomic.Int64 // requests that are held at the moment
}

func newSlowEngine(ctx context.Context, w *world) (*slowEngine, error) {
	docker, err := vmtest.OpenDocker()
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
	way := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	way.FlushInterval = -1 // events
	way.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, target.Scheme, target.Path+target.Host)
	}}
	e.server = &http.Server{ReadHeaderTimeout: askWithin, Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		e.hold(in.Context())
		way.ServeHTTP(out, in)
	})}
	go func() { _ = e.server.Serve(listener) }()
	return e, nil
}

func (e *slowEngine) hold(ctx context.Context) {
	e.held.Add(1)
	defer e.held.Add(-1)
	_ = bench.Pause(ctx, time.Duration(e.delay.Load()))
}

// env makes a program use this proxy.
func (e *slowEngine) env() []string { return []string{"DOCKER_HOST=unix://" + e.path} }

func (e *slowEngine) close() error { return e.server.Close() }

// load makes the engine slow, and gives it VMs until its workers are blocked.
func (e *slowEngine) load(ctx context.Context, w *world, turn int) error {
	e.delay.Store(int64(slowDelay))
	err := bench.Each(ctx, slowVMs, w.b.AtOnce, func(ctx context.Context, n int) error {
		vm := vmtest.VM(fmt.Sprintf("slow-%d-%d", turn, n)).Driver("docker").Namespace("").Obj()
		_, err := w.in(idleNamespace).Create(ctx, vm, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	_, err = vmtest.Poll(atLeast, func() error {
		if held := e.held.Load(); held < noopWorkers {
			return fmt.Errorf("the engine holds %d calls", held)
		}
		return nil
	})
	return err
}

// unload makes the engine quick again and removes its VMs.
func (e *slowEngine) unload(ctx context.Context, w *world) error {
	if e.held.Load() == 0 {
		return errors.New("the slow engine held no call at the end: it had nothing to do")
	}
	e.delay.Store(0)
	idle := *w
	idle.vms = w.in(idleNamespace)
	_, err := idle.until(ctx, slowVMs, isGone, func(ctx context.Context) error {
		return idle.vms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	return err
}
