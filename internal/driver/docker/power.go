// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// stop sends the signal once, and SIGKILL when StopBy has passed. It uses the
// engine's kill rather than its stop, which would block for the whole grace period.
// Either one keeps the engine's restarter from starting the container again.
func (d *Driver) stop(ctx context.Context, spec driver.ServerSpec, r *record) (done bool, err error) {
	begun, stopping := d.stops.of(*r)
	now := stop{by: begun.by, forced: begun.forced}
	if !stopping || spec.Power == driver.PowerOff || endsRun(*r, spec) {
		now.by = spec.StopBy
	}
	if due(now.by, d.Clock.Now()) {
		now.forced = true
	}
	if now.forced || !stopping {
		if err := d.kill(ctx, *r, now.forced); err != nil {
			return true, err
		}
	}
	d.stops.put(*r, now)
	// The engine answers after it has cleaned up a guest that ended at once, so that a
	// deletion continues without an event.
	if err := d.refresh(ctx, r); err != nil {
		return true, err
	}
	_, still := d.stops.of(*r)
	return still, nil
}

// due reports whether by has passed; a stop without a time is never forced.
func due(by, now time.Time) bool { return !by.IsZero() && !now.Before(by) }

// kill signals the container; the engine resumes a paused one for that. A container
// that does not run any more counts as signalled.
func (d *Driver) kill(ctx context.Context, r record, force bool) error {
	signal := "SIGKILL"
	switch {
	case !force && r.stopSignal != "":
		signal = r.stopSignal
	case !force:
		signal = "SIGTERM"
	}
	err := d.change(ctx, "stop container "+shortID(r.id)+" with "+signal, func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerKill(ctx, r.id, client.ContainerKillOptions{Signal: signal})
		return err
	})
	return settle(r, err)
}

// settle ignores the error of a container that is no longer in the state for a step:
// the next inspection shows its state. The engine returns 409 for that, or 500 if it
// noticed late.
func settle(r record, err error) error {
	switch {
	case isGone(err):
		return vanished(r.id)
	case isConflict(err), err != nil && notRunning.MatchString(err.Error()):
		return nil
	}
	return err
}

var notRunning = regexp.MustCompile(`is not running|is not paused|already paused|no such process|process already finished`)

// power starts, pauses or resumes a container.
func (d *Driver) power(ctx context.Context, spec driver.ServerSpec, next step, r *record) error {
	err := d.change(ctx, string(next)+" container "+shortID(r.id), func(ctx context.Context, c *client.Client) (err error) {
		switch next {
		case stepStart:
			_, err = c.ContainerStart(ctx, r.id, client.ContainerStartOptions{})
		case stepPause:
			_, err = c.ContainerPause(ctx, r.id, client.ContainerPauseOptions{})
		case stepUnpause:
			_, err = c.ContainerUnpause(ctx, r.id, client.ContainerUnpauseOptions{})
		case stepNone, stepStop, stepReplace:
		}
		return err
	})
	if next == stepStart && err != nil {
		return explainStart(spec, err)
	}
	if err := settle(*r, err); err != nil {
		return err
	}
	return d.refresh(ctx, r)
}

// replace recreates a container, with the fields that could not be changed. A crash in
// between leaves none, and the next Ensure creates it.
func (d *Driver) replace(ctx context.Context, spec driver.ServerSpec, r *record) (done bool, err error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return true, err
	}
	if waits, err := d.fetching(ctx, spec); waits || err != nil {
		return true, err
	}
	force := r.state == container.StateDead
	if err := d.remove(ctx, r.id, force); err != nil && !errors.Is(err, driver.ErrNotFound) {
		return true, err
	}
	made, err := d.createContainer(ctx, spec)
	if err != nil {
		return true, err
	}
	*r = made
	d.notes.remember(r.id, spec.RootDiskBytes)
	return false, nil
}

// resize applies what Docker can change at any time: CPU, memory and the
// restart policy.
func (d *Driver) resize(ctx context.Context, spec driver.ServerSpec, r *record) error {
	if sized(*r, spec) || r.state == container.StateRemoving || r.state == container.StateDead {
		return nil
	}
	if spec.CPUMilli > r.cpuMilli || spec.MemoryBytes > r.memory {
		if err := d.checkCapacity(ctx, spec); err != nil {
			return err
		}
	}
	if spec.MemoryBytes < r.memory && r.alive() {
		if err := d.checkInUse(ctx, *r, spec.MemoryBytes); err != nil {
			return err
		}
	}
	if err := d.update(ctx, spec, *r); err != nil {
		return err
	}
	return d.refresh(ctx, r)
}

func sized(r record, spec driver.ServerSpec) bool {
	return r.cpuMilli == spec.CPUMilli && r.memory == spec.MemoryBytes && r.restart == restartMode(spec.RestartPolicy)
}

func (d *Driver) update(ctx context.Context, spec driver.ServerSpec, r record) error {
	sizes := resources(spec)
	err := d.change(ctx, "change the size of container "+shortID(r.id), func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerUpdate(ctx, r.id, client.ContainerUpdateOptions{
			Resources:     &sizes,
			RestartPolicy: &container.RestartPolicy{Name: restartMode(spec.RestartPolicy)},
		})
		return err
	})
	switch {
	case isGone(err):
		return vanished(r.id)
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "%w", err)
	case isConflict(err), err != nil && busy.MatchString(err.Error()):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// busy matches the error of a cgroup v1 kernel for a limit below the use.
var busy = regexp.MustCompile(`device or resource busy`)

// checkInUse protects a shrinking guest: a cgroup v2 kernel kills it if the new
// limit is below its use.
func (d *Driver) checkInUse(ctx context.Context, r record, limit int64) error {
	stats, err := d.sample(ctx, r.id)
	if err != nil {
		return settle(r, err)
	}
	if used := memoryInUse(stats.MemoryStats); used > limit {
		return driver.Errorf(driver.ErrRetry, "spec.resource.memory: %s is less than the %s in use: stop the server to shrink it, or free memory in it", sizeText(limit), roughly(used))
	}
	return nil
}

// stops records which runs were asked to end, because Docker does not show that.
// After a restart of Drover the worst effect is one more signal.
type stops struct {
	mu   sync.Mutex
	byID map[string]stop
}

type stop struct {
	run    string
	by     time.Time
	forced bool
}

// String is for people.
func (s stop) String() string {
	switch {
	case s.forced:
		return "stopping, forced"
	case s.by.IsZero():
		return "stopping"
	}
	return fmt.Sprintf("stopping, forced at %s UTC", s.by.UTC().Format(time.TimeOnly))
}

// of returns the stop of the current run, if it was asked to end.
func (s *stops) of(r record) (stop, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byID[r.id]
	return st, ok && r.alive() && st.run == r.run()
}

func (s *stops) put(r record, st stop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]stop{}
	}
	st.run = r.run()
	s.byID[r.id] = st
}

func (s *stops) prune(there map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prune(s.byID, there)
}
