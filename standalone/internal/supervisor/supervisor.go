// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs the parts of a program in order: each starts when the one
// before it is ready, the death of one ends all, and they stop in reverse.
// Start with Run.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// Component is one thing that runs for as long as the program does.
type Component struct {
	Name string
	// Run works until its context ends. A part without one is a step: it only
	// has something to do before the next part starts.
	Run func(context.Context) error
	// Ready returns once the part does its work; nil means at once.
	Ready func(context.Context) error
	// Within is how long it may take to be ready.
	Within time.Duration
	// StopBy is when, counted from the start of the stop, the part is left
	// behind if it has not ended.
	StopBy time.Duration
}

// Observer is told what happens, for people to see.
type Observer interface {
	Ready(name string, took time.Duration)
	Stopping()
	Stopped(name string, took time.Duration)
	LeftBehind(name string, after time.Duration)
}

// Runner runs parts.
type Runner struct {
	Clock    clock.WithTicker
	Observer Observer
	running  []*running
	died     chan error
}

type running struct {
	Component
	cancel context.CancelFunc
	done   chan struct{}
}

// diedError is the reason why everything stops though nobody asked.
type diedError struct {
	name string
	err  error
}

func (e *diedError) Error() string {
	if e.err == nil {
		return e.name + " ended by itself"
	}
	return fmt.Sprintf("%s failed: %v", e.name, e.err)
}

func (e *diedError) Unwrap() error { return e.err }

// Run starts the parts, calls up when all are ready, and stops them when ctx
// ends, which is no error, or when one of them dies, which is.
func (r *Runner) Run(ctx context.Context, parts []Component, up func() error) error {
	r.died = make(chan error, len(parts))
	err := r.startAll(ctx, parts)
	if err == nil {
		err = up()
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-r.died:
		}
	}
	r.stopAll()
	if ctx.Err() != nil && !isDeath(err) {
		return nil
	}
	return err
}

func isDeath(err error) bool {
	var died *diedError
	return errors.As(err, &died)
}

func (r *Runner) startAll(ctx context.Context, parts []Component) error {
	for _, p := range parts {
		begin := r.Clock.Now()
		if err := r.start(ctx, p); err != nil {
			return err
		}
		r.Observer.Ready(p.Name, r.Clock.Since(begin))
	}
	return nil
}

// start launches one part under a context of its own, so that it outlives ctx
// until its turn to stop has come, and waits until it is ready.
func (r *Runner) start(ctx context.Context, p Component) error {
	if p.Run != nil {
		r.launch(context.WithoutCancel(ctx), p)
	}
	if p.Ready == nil {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, p.Within)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- p.Ready(ctx) }()
	select {
	case err := <-r.died:
		return err
	case err := <-ready:
		return r.explain(ctx, p, err)
	}
}

// explain prefers the death of a part to the failed wait that follows from it.
func (r *Runner) explain(ctx context.Context, p Component, err error) error {
	if err == nil {
		return nil
	}
	select {
	case died := <-r.died:
		return died
	default:
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s was not ready within %s: %w", p.Name, p.Within, err)
	}
	return fmt.Errorf("%s: %w", p.Name, err)
}

func (r *Runner) launch(ctx context.Context, p Component) {
	ctx, cancel := context.WithCancel(ctx)
	run := &running{Component: p, cancel: cancel, done: make(chan struct{})}
	r.running = append(r.running, run)
	go func() {
		defer close(run.done)
		err := p.Run(ctx)
		if ctx.Err() == nil {
			r.died <- &diedError{name: p.Name, err: err}
		}
	}()
}

func (r *Runner) stopAll() {
	begin := r.Clock.Now()
	r.Observer.Stopping()
	for _, run := range slices.Backward(r.running) {
		r.stop(run, begin)
	}
}

func (r *Runner) stop(run *running, begin time.Time) {
	run.cancel()
	own := r.Clock.Now()
	timer := r.Clock.NewTimer(max(0, run.StopBy-r.Clock.Since(begin)))
	defer timer.Stop()
	select {
	case <-run.done:
		r.Observer.Stopped(run.Name, r.Clock.Since(own))
	case <-timer.C():
		r.Observer.LeftBehind(run.Name, r.Clock.Since(own))
	}
}
