// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervisor runs the components of a program in order: a component starts when the previous component
// is ready. If a component ends unexpectedly, all components stop. They stop in reverse order. Start with Run.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// Component is a part of a program that runs as long as the program does.
type Component struct {
	Name string
	// Run works until its context ends. A component without Run is a step: its function
	// Ready does all of its work, before the next component starts.
	Run func(context.Context) error
	// Ready returns once the component does its work. If nil, it is ready immediately.
	Ready func(context.Context) error
	// Cause returns why the component is not ready yet, or nil if that is unknown. It may be nil.
	Cause func() error
	// Within is how long the component may take to be ready.
	Within time.Duration
	// StopBy is how long after the start of the stop the Runner waits for the end of the
	// component. Then it leaves the component behind.
	StopBy time.Duration
}

// Observer is notified of progress, for people to see.
type Observer interface {
	// Waiting is called once if a component is not ready after noticeDelay. cause may be nil.
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
	running  []*runningComponent
	failed   chan error
}

type runningComponent struct {
	Component
	cancel context.CancelFunc
	done   chan struct{}
}

// componentError means that a component has ended unexpectedly.
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

// Run starts the components, calls onReady when all are ready, and stops them when ctx ends or one of them
// ends unexpectedly. It returns nil after ctx has ended, unless a component ended unexpectedly.
func (r *Runner) Run(ctx context.Context, components []Component, onReady func() error) error {
	r.failed = make(chan error, len(components))
	err := r.startAll(ctx, components)
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

func (r *Runner) startAll(ctx context.Context, components []Component) error {
	for _, c := range components {
		begin := r.Clock.Now()
		if err := r.startComponent(ctx, c); err != nil {
			return err
		}
		r.Observer.Ready(c.Name, r.Clock.Since(begin))
	}
	return nil
}

// startComponent starts a component and waits until it is ready. The component has a separate
// context, so that it runs on after the end of ctx until it has to stop.
func (r *Runner) startComponent(ctx context.Context, c Component) error {
	if c.Run != nil {
		r.launchComponent(context.WithoutCancel(ctx), c)
	}
	if c.Ready == nil {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, c.Within)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- c.Ready(ctx) }()
	notice := r.Clock.NewTimer(noticeDelay)
	defer notice.Stop()
	for {
		select {
		case err := <-r.failed:
			return err
		case err := <-ready:
			return r.explainFailure(ctx, c, err)
		case <-notice.C():
			r.Observer.Waiting(c.Name, noticeDelay, c.unreadyCause())
		}
	}
}

// noticeDelay is how long a component may take to be ready before the Observer is told.
const noticeDelay = 10 * time.Second

func (c *Component) unreadyCause() error {
	if c.Cause == nil {
		return nil
	}
	return c.Cause()
}

// explainFailure returns the error of a component that did not become ready. If a component
// has ended unexpectedly, it returns that error, which is the cause of err.
func (r *Runner) explainFailure(ctx context.Context, c Component, err error) error {
	if err == nil {
		return nil
	}
	select {
	case failure := <-r.failed:
		return failure
	default:
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s was not ready within %s: %w", c.Name, c.Within, err)
	}
	return fmt.Errorf("%s: %w", c.Name, err)
}

func (r *Runner) launchComponent(ctx context.Context, c Component) {
	ctx, cancel := context.WithCancel(ctx)
	running := &runningComponent{Component: c, cancel: cancel, done: make(chan struct{})}
	r.running = append(r.running, running)
	go func() {
		defer close(running.done)
		err := c.Run(ctx)
		if ctx.Err() == nil {
			r.failed <- &componentError{name: c.Name, err: err}
		}
	}()
}

func (r *Runner) stopAll() {
	begin := r.Clock.Now()
	r.Observer.Stopping()
	for _, c := range slices.Backward(r.running) {
		r.stopComponent(c, begin)
	}
}

// stopComponent stops a component. allBegin is when the stop of all components began.
func (r *Runner) stopComponent(c *runningComponent, allBegin time.Time) {
	c.cancel()
	begin := r.Clock.Now()
	timer := r.Clock.NewTimer(max(0, c.StopBy-r.Clock.Since(allBegin)))
	defer timer.Stop()
	select {
	case <-c.done:
		r.Observer.Stopped(c.Name, r.Clock.Since(begin))
	case <-timer.C():
		r.Observer.LeftBehind(c.Name, r.Clock.Since(begin))
	}
}
