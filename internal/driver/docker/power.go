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
func (d *Driver) stop(ctx context.Context, spec driver.ServerSpec, r *instance) (done bool, err error) {
	begun, stopping := d.stops.of(*r)
	now := stopRequest{deadline: begun.deadline, forced: begun.forced}
	if !stopping || spec.Power == driver.PowerOff || endsRun(*r, spec) {
		now.deadline = spec.StopBy
	}
	if isDue(now.deadline, d.Clock.Now()) {
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
	if err := d.refreshInstance(ctx, r); err != nil {
		return true, err
	}
	_, still := d.stops.of(*r)
	return still, nil
}

// isDue reports whether by has passed; a stop without a time is never forced.
func isDue(by, now time.Time) bool { return !by.IsZero() && !now.Before(by) }

// kill signals the container; the engine resumes a paused one for that. A container
// that does not run any more counts as signalled.
func (d *Driver) kill(ctx context.Context, r instance, force bool) error {
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
	return ignoreStateConflict(r, err)
}

// ignoreStateConflict ignores the error of a container that is no longer in the state for a step:
// the next inspection shows its state. The engine returns 409 for that, or 500 if it
// noticed late.
func ignoreStateConflict(r instance, err error) error {
	switch {
	case isGone(err):
		return vanishedError(r.id)
	case isConflict(err), err != nil && stateConflict.MatchString(err.Error()):
		return nil
	}
	return err
}

var stateConflict = regexp.MustCompile(`is not running|is not paused|already paused|no such process|process already finished`)

// changePower starts, pauses or resumes a container.
func (d *Driver) changePower(ctx context.Context, spec driver.ServerSpec, next step, r *instance) error {
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
	if err := ignoreStateConflict(*r, err); err != nil {
		return err
	}
	return d.refreshInstance(ctx, r)
}

// replace recreates a container, with the fields that could not be changed. A crash in
// between leaves none, and the next Ensure creates it.
func (d *Driver) replace(ctx context.Context, spec driver.ServerSpec, r *instance) (done bool, err error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return true, err
	}
	if waits, err := d.ensureImage(ctx, spec); waits || err != nil {
		return true, err
	}
	force := r.state == container.StateDead
	if err := d.remove(ctx, r.id, force); err != nil && !errors.Is(err, driver.ErrNotFound) {
		return true, err
	}
	made, err := d.createInstance(ctx, spec)
	if err != nil {
		return true, err
	}
	*r = made
	d.notes.remember(r.id, spec.RootDiskBytes)
	return false, nil
}

// resize applies what Docker can change at any time: CPU, memory and the
// restart policy.
func (d *Driver) resize(ctx context.Context, spec driver.ServerSpec, r *instance) error {
	if hasLimits(*r, spec) || r.state == container.StateRemoving || r.state == container.StateDead {
		return nil
	}
	if spec.CPUMilli > r.cpuMilli || spec.MemoryBytes > r.memory {
		if err := d.checkCapacity(ctx, spec); err != nil {
			return err
		}
	}
	if spec.MemoryBytes < r.memory && r.isActive() {
		if err := d.checkMemoryInUse(ctx, *r, spec.MemoryBytes); err != nil {
			return err
		}
	}
	if err := d.updateLimits(ctx, spec, *r); err != nil {
		return err
	}
	return d.refreshInstance(ctx, r)
}

func hasLimits(r instance, spec driver.ServerSpec) bool {
	return r.cpuMilli == spec.CPUMilli && r.memory == spec.MemoryBytes && r.restart == restartPolicy(spec.RestartPolicy)
}

func (d *Driver) updateLimits(ctx context.Context, spec driver.ServerSpec, r instance) error {
	sizes := resourceLimits(spec)
	err := d.change(ctx, "change the size of container "+shortID(r.id), func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerUpdate(ctx, r.id, client.ContainerUpdateOptions{
			Resources:     &sizes,
			RestartPolicy: &container.RestartPolicy{Name: restartPolicy(spec.RestartPolicy)},
		})
		return err
	})
	switch {
	case isGone(err):
		return vanishedError(r.id)
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "%w", err)
	case isConflict(err), err != nil && memoryBusy.MatchString(err.Error()):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// memoryBusy matches the error of a cgroup v1 kernel for a limit below the use.
var memoryBusy = regexp.MustCompile(`device or resource busy`)

// checkMemoryInUse protects a shrinking guest: a cgroup v2 kernel kills it if the new
// limit is below its use.
func (d *Driver) checkMemoryInUse(ctx context.Context, r instance, limit int64) error {
	stats, err := d.readStats(ctx, r.id)
	if err != nil {
		return ignoreStateConflict(r, err)
	}
	if used := memoryInUse(stats.MemoryStats); used > limit {
		return driver.Errorf(driver.ErrRetry, "spec.resource.memory: %s is less than the %s in use: stop the server to shrink it, or free memory in it", formatBytes(limit), formatMegabytes(used))
	}
	return nil
}

// stops records which runs were asked to end, because Docker does not show that.
// After a restart of Drover the worst effect is one more signal.
type stops struct {
	mu   sync.Mutex
	byID map[string]stopRequest
}

type stopRequest struct {
	run    string
	deadline     time.Time
	forced bool
}

// String is for people.
func (s stopRequest) String() string {
	switch {
	case s.forced:
		return "stopping, forced"
	case s.deadline.IsZero():
		return "stopping"
	}
	return fmt.Sprintf("stopping, forced at %s UTC", s.deadline.UTC().Format(time.TimeOnly))
}

// of returns the stop of the current run, if it was asked to end.
func (s *stops) of(r instance) (stopRequest, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.byID[r.id]
	return st, ok && r.isActive() && st.run == r.runID()
}

func (s *stops) put(r instance, st stopRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]stopRequest{}
	}
	st.run = r.runID()
	s.byID[r.id] = st
}

func (s *stops) prune(there map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prune(s.byID, there)
}
