// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs the parts of a program in order: each starts when the one
// before it is ready. If one part ends unexpectedly, all stop. They stop in reverse order.
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

// Component is one part, which runs as long as the program does.
type Component struct {
	Name string
	// Run works until its context ends. A component without Run is a step: it only
	// does something, in Ready, before the next one starts.
	Run func(context.Context) error
	// Ready returns once the component does its work; nil means immediately.
	Ready func(context.Context) error
	// Cause returns why it is not ready yet, as far as that is known; nil is for a component that does not know.
	Cause func() error
	// Within is how long it may take to be ready.
	Within time.Duration
	// StopBy is when, counted from the start of the stop, the component is left
	// behind if it has not ended.
	StopBy time.Duration
}

// Observer is notified of progress, for people to see.
type Observer interface {
	// Waiting is called once if a component is not ready after a while. cause may be nil.
	Waiting(name string, after time.Duration, cause error)
	Ready(name string, took time.Duration)
	Stopping()
	Stopped(name string, took time.Duration)
	LeftBehind(name string, after time.Duration)
}

// Runner runs components.
type Runner struct {
	Clock    clock.WithTicker
	Observer Observer
	running  []*running
	failed   chan error
}

type running struct {
	Component
	cancel context.CancelFunc
	done   chan struct{}
}

// componentError is the cause of a stop that was not requested.
type componentError struct {
	name string
	err  error
}

func (e *componentError) Error() string {
	if e.err == nil {
		return e.name + " ended unexpectedly"
	}
	return fmt.Sprintf("%s failed: %v", e.name, e.err)
}

func (e *componentError) Unwrap() error { return e.err }

// Run starts the parts, calls onReady when all are ready, and stops them. It returns nil if
// that is because ctx ended, and an error if one of them ended unexpectedly.
func (r *Runner) Run(ctx context.Context, parts []Component, onReady func() error) error {
	r.failed = make(chan error, len(parts))
	err := r.startAll(ctx, parts)
	if err == nil {
		err = onReady()
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-r.failed:
		}
	}
	r.stopAll()
	if ctx.Err() != nil && !isComponentError(err) {
		return nil
	}
	return err
}

func isComponentError(err error) bool {
	var failure *componentError
	return errors.As(err, &failure)
}

func (r *Runner) startAll(ctx context.Context, parts []Component) error {
	for _, p := range parts {
		begin := r.Clock.Now()
		if err := r.startComponent(ctx, p); err != nil {
			return err
		}
		r.Observer.Ready(p.Name, r.Clock.Since(begin))
	}
	return nil
}

// startComponent launches one part under a separate context, so that it outlives ctx until
// its turn to stop, and waits until it is ready.
func (r *Runner) startComponent(ctx context.Context, p Component) error {
	if p.Run != nil {
		r.launchComponent(context.WithoutCancel(ctx), p)
	}
	if p.Ready == nil {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, p.Within)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- p.Ready(ctx) }()
	notice := r.Clock.NewTimer(noticeDelay)
	defer notice.Stop()
	for {
		select {
		case err := <-r.failed:
			return err
		case err := <-ready:
			return r.explainFailure(ctx, p, err)
		case <-notice.C():
			r.Observer.Waiting(p.Name, noticeDelay, p.failureCause())
		}
	}
}

// noticeDelay is after how long people are told that a component is not ready.
const noticeDelay = 10 * time.Second

func (c *Component) failureCause() error {
	if c.Cause == nil {
		return nil
	}
	return c.Cause()
}

// explainFailure prefers the unexpected end of a part to the failed wait that follows
// from it.
func (r *Runner) explainFailure(ctx context.Context, p Component, err error) error {
	if err == nil {
		return nil
	}
	select {
	case failure := <-r.failed:
		return failure
	default:
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s was not ready within %s: %w", p.Name, p.Within, err)
	}
	return fmt.Errorf("%s: %w", p.Name, err)
}

func (r *Runner) launchComponent(ctx context.Context, p Component) {
	ctx, cancel := context.WithCancel(ctx)
	run := &running{Component: p, cancel: cancel, done: make(chan struct{})}
	r.running = append(r.running, run)
	go func() {
		defer close(run.done)
		err := p.Run(ctx)
		if ctx.Err() == nil {
			r.failed <- &componentError{name: p.Name, err: err}
		}
	}()
}

func (r *Runner) stopAll() {
	begin := r.Clock.Now()
	r.Observer.Stopping()
	for _, run := range slices.Backward(r.running) {
		r.stopComponent(run, begin)
	}
}

func (r *Runner) stopComponent(run *running, begin time.Time) {
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
