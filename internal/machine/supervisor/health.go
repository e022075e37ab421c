// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"io"

	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

// healthFollower runs the health check of a container image, and reports the results.
type healthFollower struct{ supervisor *Supervisor }

// follow runs the check until ctx ends, if the image has one. The first check is due one interval after the start, and at
// once if an earlier supervisor has started the guest.
func (f healthFollower) follow(ctx context.Context) {
	if f.supervisor.HealthCheck == nil {
		return
	}
	check, startedAt, results := *f.supervisor.HealthCheck, f.supervisor.progress.currentStatus().StartedAt, health.Results{State: health.Starting}
	wait := results.Interval(check, 0) - f.supervisor.Clock.Since(startedAt)
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.supervisor.Clock.After(wait):
		}
		age := f.supervisor.Clock.Since(startedAt)
		if succeeded, ok := f.runOnce(ctx, check); ok && ctx.Err() == nil {
			results.Record(check, age, succeeded)
			f.report(results.State)
		}
		wait = results.Interval(check, f.supervisor.Clock.Since(startedAt))
	}
}

// runOnce runs the check once. It is not ok if the guest was not asked: it is paused or ends, or runs as many commands as it
// can.
func (f healthFollower) runOnce(ctx context.Context, check health.Check) (succeeded, ok bool) {
	if f.supervisor.guest.checkGuest(ctx) != nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, check.Timeout)
	defer cancel()
	code, err := f.supervisor.guest.Exec(ctx, terminal.Command{Args: check.Args, Stdout: io.Discard, Stderr: io.Discard})
	return err == nil && code == 0, !errors.Is(err, failure.ErrTooManyStreams)
}

// report sets the health in the status, and tells those who watch about a change.
func (f healthFollower) report(state health.State) {
	if f.supervisor.progress.currentStatus().Health == state {
		return
	}
	f.supervisor.progress.setHealth(state)
	f.supervisor.Log.Info("Health of the guest has changed", "health", state)
	f.supervisor.watches.notifyAll()
}
