// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

// observed is what the run itself knows and the control listener reports.
type observed struct {
	mu          sync.Mutex
	accelerator string
	startedAt   time.Time
	isStopping  bool
	waits       control.Wait
	gracePeriod time.Duration // 0 until it was set
	disks       disks
}

// set changes what is observed.
func (o *observed) set(change func(*observed)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(o)
}

// status returns the state as far as it does not depend on QEMU.
func (o *observed) status() control.Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := control.Status{State: control.StateRunning, Accelerator: o.accelerator, StartedAt: o.startedAt, Waits: o.waits}
	switch {
	case o.isStopping:
		s.State = control.StateStopping
	case o.startedAt.IsZero():
		s.State = control.StateStarting
	}
	return s
}

// waitOf returns what a guest waits for, by the error that explains it.
func waitOf(cause error) control.Wait {
	switch {
	case errors.Is(cause, machine.ErrNoRoom):
		return control.WaitRoom
	case errors.Is(cause, machine.ErrDiskFault):
		return control.WaitDisk
	}
	return control.WaitNone
}

// serveControl serves the control listener of the description, if there is one, until ctx ends.
func (r *run) serveControl(ctx context.Context) error {
	if r.Control == nil {
		return nil
	}
	credentials, err := control.ReadCredentials(r.Control.Folder)
	if err != nil {
		return fmt.Errorf("control.folder: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(int(r.Control.Port)))
	if err != nil {
		return fmt.Errorf("control.port: %w", err)
	}
	server, err := control.NewServer(ctx, credentials, controlled{r}, reachable{r})
	if err != nil {
		return fmt.Errorf("control.folder: %w", errors.Join(err, listener.Close()))
	}
	go func() {
		if err := server.Serve(listener); err != nil && ctx.Err() == nil {
			r.log.Error(err, "Machine cannot be controlled any more")
		}
	}()
	return nil
}

// controlled is a run as its control listener has it.
type controlled struct{ *run }

var _ control.Machine = controlled{}

// Status implements control.Machine.
func (c controlled) Status(ctx context.Context) (control.Status, error) {
	s := c.observed.status()
	if s.State == control.StateStarting {
		if done, total := c.progress.done.Load(), c.progress.total.Load(); done > 0 {
			s.Copied = &control.Copied{Bytes: done, TotalBytes: total}
		}
		return s, nil
	}
	if s.StartedAt.IsZero() {
		return s, nil
	}
	used, err := proc.ReadUsage(c.machine.PID())
	if err != nil {
		return s, control.ErrFailed
	}
	s.CPUNanoseconds, s.MemoryBytes = used.CPU.Nanoseconds(), used.MemoryBytes
	if s.State == control.StateStopping {
		return s, nil
	}
	status, err := c.machine.Status(ctx)
	if err != nil {
		return s, control.ErrFailed
	}
	isPaused := status == machine.StatusPaused
	if _, hasEnded := machine.EndOf(status); hasEnded {
		s.State = control.StateStopping
	} else if isPaused {
		s.State = control.StatePaused
	}
	s.GuestMemoryBytes, _ = c.machine.GuestMemory(ctx, time.Now(), isPaused)
	return s, nil
}

// Pause implements control.Machine. A guest that is asked to stop meanwhile is resumed by the
// next press of the power button.
func (c controlled) Pause(ctx context.Context) error {
	return c.changeState(ctx, "stop", machine.StatusPaused)
}

// Resume implements control.Machine.
func (c controlled) Resume(ctx context.Context) error {
	return c.changeState(ctx, "cont", statusRunning)
}

// statusRunning is QEMU's run state of a guest that runs.
const statusRunning = "running"

// changeState takes a guest that runs or is paused to a run state.
func (c controlled) changeState(ctx context.Context, command, to string) error {
	if err := c.checkRunning(); err != nil {
		return err
	}
	status, err := c.machine.Status(ctx)
	switch {
	case err != nil:
		return control.ErrFailed
	case status == to:
		return nil
	case status != statusRunning && status != machine.StatusPaused:
		return control.ErrNotRunning
	}
	if err := c.machine.Execute(ctx, command, nil, nil); err != nil {
		return control.ErrFailed
	}
	c.log.Info("Guest was changed by the control port", "runState", to)
	return nil
}

// checkRunning refuses what only a guest can get that was started and is not to stop.
func (r *run) checkRunning() error {
	if s := r.observed.status(); s.State != control.StateRunning {
		return control.ErrNotRunning
	}
	return nil
}

// Probe implements control.Machine.
func (c controlled) Probe(ctx context.Context, port int32) error {
	if err := c.checkRunning(); err != nil {
		return err
	}
	return c.probe(ctx, port)
}

// SetGracePeriod implements control.Machine.
func (c controlled) SetGracePeriod(_ context.Context, period time.Duration) error {
	c.observed.set(func(o *observed) { o.gracePeriod = period })
	return nil
}

// gracePeriod returns how long the guest has to shut down.
func (r *run) gracePeriod() time.Duration {
	r.observed.mu.Lock()
	defer r.observed.mu.Unlock()
	return cmp.Or(r.observed.gracePeriod, time.Duration(r.GracePeriodSeconds)*time.Second)
}

// probe returns nil once the guest has answered at a port, by way of the port that leads there.
func (r *run) probe(ctx context.Context, port int32) error {
	at := slices.IndexFunc(r.Forwards, func(f description.Forward) bool { return f.Protocol == "tcp" && f.Port == port })
	if at < 0 {
		return fmt.Errorf("%w: no TCP port %d is in forwards", control.ErrUnknown, port)
	}
	forward := launch.Forward{Protocol: "tcp", HostPort: r.Forwards[at].HostPort, Port: port}
	if err := r.machine.Probe(ctx, clock.RealClock{}, forward); err != nil {
		return fmt.Errorf("%w: %w", control.ErrNoAnswer, err)
	}
	return nil
}

// Grow implements control.Machine.
func (c controlled) Grow(ctx context.Context, sizes control.Sizes) error {
	if err := c.checkRunning(); err != nil {
		return err
	}
	known, wanted := c.describedSizes(), map[string]int64{}
	if sizes.RootDisk != 0 {
		wanted[launch.RootNode] = sizes.RootDisk
	}
	for name, size := range sizes.Volumes {
		wanted[launch.VolumeNode(name)] = size
	}
	for node := range wanted {
		if _, ok := known[node]; !ok {
			return control.ErrUnknown
		}
	}
	if err := c.growDisks(ctx, wanted); err != nil {
		c.log.Error(err, "Disks cannot be grown")
		return control.ErrFailed
	}
	return nil
}
