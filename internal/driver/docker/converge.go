// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/internal/driver/kit"
)

// maxSteps is more than any server needs. It ends a conflict with another program
// that undoes each step.
const maxSteps = 8

// convergeTo changes a container to match the spec, or as far as possible without waiting. A run that
// begins and ends meanwhile, as of a short job, is reported, and not followed by another.
func (i *instance) convergeTo(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	i.driver.rootDisks.Store(i.id, spec.RootDiskBytes)
	before := i.runID()
	for range maxSteps {
		done, err := i.takeNextStep(ctx, spec)
		if err != nil {
			return driver.Server{}, err
		}
		done = done || i.runID() != before && i.exitStatus() != nil && !i.hasRun()
		if done {
			s := i.toServer()
			s.Pending, s.Progress = pendingFields(i, spec), cmp.Or(s.Progress, i.driver.fetches.Progress(i.uid))
			return s, nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "container %s does not settle: it is %s again and again", engine.ShortID(i.id), i.state)
}

// takeNextStep takes one step and inspects the container again. A stop comes first, so
// that a size which the host cannot provide does not keep the container on.
func (i *instance) takeNextStep(ctx context.Context, spec driver.ServerSpec) (done bool, err error) {
	pending := pendingFields(i, spec)
	switch next := i.nextStep(spec, pending); next {
	case kit.StepStop, kit.StepKill, kit.StepWait:
		if _, isStopping := i.requestedStop(); len(pending) > 0 && spec.Power != driver.PowerOff && !isStopping {
			if waits, err := i.driver.ensureImage(ctx, spec); waits || err != nil {
				return true, err
			}
		}
		return i.stopServer(ctx, spec, next)
	case stepReplace:
		return i.replaceContainer(ctx, spec)
	case kit.StepNone:
		if len(pending) == 0 {
			i.driver.fetches.ReleaseExcept(spec.UID) // in case of a change that was reverted
		}
		return true, i.updateContainer(ctx, spec)
	default:
		if err := i.updateContainer(ctx, spec); err != nil {
			return false, err
		}
		return false, i.changePower(ctx, spec, next)
	}
}

// stepReplace makes another container, with the fields that the present one cannot get.
const stepReplace kit.Step = "replace"

// nextStep returns the step that brings a container closer to its spec. The pause between two
// tries of the engine's restarter is used for a change that waits for a restart, which may be
// what repairs the guest.
func (i *instance) nextStep(spec driver.ServerSpec, pending []string) kit.Step {
	if i.state == container.StateRestarting && len(pending) > 0 {
		spec.RestartRun = i.runID()
	}
	next := kit.NextStep(i.observedState(), spec, i.driver.Options.Clock.Now())
	if next == kit.StepStart && (len(pending) > 0 || i.state == container.StateDead) {
		return stepReplace
	}
	return next
}

// stopRequest is a stop that has begun.
type stopRequest struct {
	runID    string
	deadline time.Time // zero if it is never forced
	forced   bool
}

// String is for people.
func (s stopRequest) String() string {
	switch {
	case s.forced:
		return "stopping, forced"
	case s.deadline.IsZero():
		return "stopping"
	}
	return "stopping, forced at " + s.deadline.UTC().Format(time.RFC3339) // up to days ahead
}

// requestedStop returns the stop of the current run, if its stop was requested. Stops
// of earlier runs are ignored: each run has a separate grace period.
func (i *instance) requestedStop() (stopRequest, bool) {
	s, ok := i.driver.stops.Load(i.id)
	return s, ok && i.hasRun() && s.runID == i.runID()
}

// stopServer sends the signal, or SIGKILL for a stop that is forced. It uses the engine's kill
// rather than its stop, which would block for the whole grace period. Either one keeps the
// engine's restarter from starting the container again.
func (i *instance) stopServer(ctx context.Context, spec driver.ServerSpec, next kit.Step) (done bool, err error) {
	request := stopRequest{runID: i.runID(), deadline: kit.StopDeadline(i.observedState(), spec), forced: next == kit.StepKill}
	if next != kit.StepWait {
		if err := i.sendSignal(ctx, request.forced); err != nil {
			return true, err
		}
	}
	i.driver.stops.Store(i.id, request)
	// The engine answers after it has cleaned up a guest that ended at once, so that a
	// deletion continues without an event.
	if err := i.inspectAgain(ctx); err != nil {
		return true, err
	}
	_, stopping := i.requestedStop()
	return stopping, nil
}

// sendSignal sends the container its stop signal or, if forced, SIGKILL; the engine
// resumes a paused one for that. A stopped container needs no signal.
func (i *instance) sendSignal(ctx context.Context, forced bool) error {
	signal := "SIGKILL"
	if !forced {
		signal = cmp.Or(i.stopSignal, "SIGTERM")
	}
	return i.ignoreStateConflict(changeContainer(ctx, i, "stop container "+engine.ShortID(i.id)+" with "+signal,
		(*client.Client).ContainerKill, client.ContainerKillOptions{Signal: signal}))
}

// ignoreStateConflict ignores the error of a container that is no longer in the state
// for a step: the next inspection shows its state. The engine returns 409 for that, or
// 500 if the state changed during the call.
func (i *instance) ignoreStateConflict(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return i.goneError()
	case errdefs.IsConflict(err), err != nil && stateConflict.MatchString(err.Error()):
		return nil
	}
	return err
}

var stateConflict = regexp.MustCompile(`is not running|is not paused|already paused|no such process|process already finished`)

// notFrozen matches the error of runc on a busy host with cgroup v1, where the kernel had not yet paused all processes.
var notFrozen = regexp.MustCompile(`unable to freeze`)

// changePower starts, pauses or resumes a container.
func (i *instance) changePower(ctx context.Context, spec driver.ServerSpec, next kit.Step) (err error) {
	action := string(next) + " container " + engine.ShortID(i.id)
	switch next {
	case kit.StepStart:
		if !i.finishedAt.IsZero() {
			i.driver.ends.Store(i.id, i.finishedAt)
		}
		err = changeContainer(ctx, i, action, (*client.Client).ContainerStart, client.ContainerStartOptions{})
		if err != nil {
			return i.handleStartError(ctx, spec, err)
		}
	case kit.StepPause:
		err = changeContainer(ctx, i, action, (*client.Client).ContainerPause, client.ContainerPauseOptions{})
		if err != nil && notFrozen.MatchString(err.Error()) {
			err = driver.Errorf(driver.ErrRetry, "%w", err)
		}
	case kit.StepResume:
		err = changeContainer(ctx, i, action, (*client.Client).ContainerUnpause, client.ContainerUnpauseOptions{})
	default:
	}
	if err := i.ignoreStateConflict(err); err != nil {
		return err
	}
	return i.inspectAgain(ctx)
}

var portTaken = regexp.MustCompile(`port is already allocated|address already in use`)

// handleStartError classifies a failed start. The container is left as it is, so that the next try
// only has to start it, unless its image is bad and nothing has ever run in it: then it is removed,
// so that a restart takes the image as it is by then.
func (i *instance) handleStartError(ctx context.Context, spec driver.ServerSpec, err error) error {
	err = explainStartError(spec, i.image, err)
	if errors.Is(err, driver.ErrInvalid) && i.startedAt.IsZero() {
		if removal := i.removeContainer(ctx, false); removal != nil && !errors.Is(removal, driver.ErrNotFound) {
			return removal
		}
	}
	return err
}

// explainStartError classifies a failed start.
func explainStartError(spec driver.ServerSpec, image string, err error) error {
	text := err.Error()
	if fault := process.Fault(spec, image, text); fault != nil {
		return fault
	}
	switch {
	case portTaken.MatchString(text): // without the engine's text, which has a new identifier at each try
		return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "%s is in use by another program or container", takenPort(spec.Ports, text)))
	case diskFull.MatchString(text):
		return driver.Errorf(driver.ErrExhausted, "%w", err)
	case errdefs.IsNotFound(err), errdefs.IsConflict(err), errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// takenPort names the field that the engine's message refers to. Several ports may have one host port, each on
// another address.
func takenPort(ports []driver.Port, text string) string {
	for _, isPrecise := range []bool{true, false} {
		for i, p := range ports {
			pattern := fmt.Sprintf(`:%d\b`, p.HostPort)
			if isPrecise {
				pattern = `[\s\[]` + regexp.QuoteMeta(cmp.Or(p.HostIP, "0.0.0.0")) + `\]?` + pattern
			}
			if p.HostPort != 0 && regexp.MustCompile(pattern).MatchString(text) {
				return fmt.Sprintf("spec.ports[%d].hostPort: host port %d", i, p.HostPort)
			}
		}
	}
	return "spec.ports: a host port"
}

// replaceContainer recreates a container, with the fields that could not be changed. If Drover
// crashes in between, there is no container, and the next Ensure creates it.
func (i *instance) replaceContainer(ctx context.Context, spec driver.ServerSpec) (done bool, err error) {
	d := i.driver
	if err := d.checkCapacity(ctx, spec); err != nil {
		return true, err
	}
	if waits, err := d.ensureImage(ctx, spec); waits || err != nil {
		return true, err
	}
	force := i.state == container.StateDead
	if err := i.removeContainer(ctx, force); err != nil && !errors.Is(err, driver.ErrNotFound) {
		return true, err
	}
	created, err := d.createInstance(ctx, spec)
	if err != nil {
		return true, err
	}
	*i = *created
	d.rootDisks.Store(i.id, spec.RootDiskBytes)
	return false, nil
}

// updateContainer applies what Docker can change at any time: CPU, memory and the
// restart policy.
func (i *instance) updateContainer(ctx context.Context, spec driver.ServerSpec) error {
	if spec.PowerOnly || i.matchesLimitsAndPolicy(spec) || i.state == container.StateRemoving || i.state == container.StateDead {
		return nil
	}
	if spec.CPUMilli > i.cpuMilli || spec.MemoryBytes > i.memory {
		if err := i.driver.checkCapacity(ctx, spec); err != nil {
			return err
		}
	}
	if spec.MemoryBytes < i.memory && i.hasRun() {
		if err := i.checkMemoryInUse(ctx, spec.MemoryBytes); err != nil {
			return err
		}
	}
	if err := i.updateLimitsAndPolicy(ctx, spec); err != nil {
		return err
	}
	return i.inspectAgain(ctx)
}

func (i *instance) matchesLimitsAndPolicy(spec driver.ServerSpec) bool {
	return i.cpuMilli == spec.CPUMilli && i.memory == spec.MemoryBytes && i.restartPolicy == restartPolicy(spec.RestartPolicy)
}

func (i *instance) updateLimitsAndPolicy(ctx context.Context, spec driver.ServerSpec) error {
	limits := resourceLimits(spec)
	err := changeContainer(ctx, i, "change the size of container "+engine.ShortID(i.id), (*client.Client).ContainerUpdate, client.ContainerUpdateOptions{
		Resources:     &limits,
		RestartPolicy: &container.RestartPolicy{Name: restartPolicy(spec.RestartPolicy)},
	})
	switch {
	case errdefs.IsNotFound(err):
		return i.goneError()
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "%w", err)
	case errdefs.IsConflict(err), err != nil && memoryBusy.MatchString(err.Error()):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// memoryBusy matches the error of a cgroup v1 kernel for a limit below the use.
var memoryBusy = regexp.MustCompile(`device or resource busy`)

// checkMemoryInUse refuses a memory limit below the current use: a cgroup v2 kernel
// would kill the guest.
func (i *instance) checkMemoryInUse(ctx context.Context, limit int64) error {
	stats, err := i.readStats(ctx)
	if err != nil {
		return i.ignoreStateConflict(err)
	}
	if used := memoryInUse(stats.MemoryStats); used > limit {
		return driver.Errorf(driver.ErrRetry, "spec.resource.memory: %s is less than the %s in use: stop the server to shrink it, or free memory in it", kit.FormatBytes(limit), kit.FormatMegabytes(used))
	}
	return nil
}

// changeContainer calls a method of Docker's client that changes a container.
func changeContainer[O, R any](ctx context.Context, i *instance, action string, method func(*client.Client, context.Context, string, O) (R, error), options O) error {
	return i.driver.engine.Change(ctx, action, func(ctx context.Context, c *client.Client) error {
		_, err := method(c, ctx, i.id, options)
		return err
	})
}

// inspectAgain inspects the container again.
func (i *instance) inspectAgain(ctx context.Context) error {
	now, err := i.driver.inspectContainer(ctx, i.id)
	if errdefs.IsNotFound(err) {
		return i.goneError()
	}
	if err == nil {
		*i = *now
	}
	return err
}
