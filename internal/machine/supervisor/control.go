// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/launch"
)

// statusRunning is QEMU's run state while the guest runs.
const statusRunning = "running"

// Status implements control.Machine.
func (s *Supervisor) Status(ctx context.Context) (control.Status, error) {
	if s.CopyProgress != nil && !s.isAttached() { // the disk is made before QEMU is started
		out := s.progress.currentStatus()
		if out.State == control.StateStarting {
			out.Copied = s.CopyProgress()
		}
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	isAttached := s.waitAttached(ctx) == nil
	out := s.progress.currentStatus()
	out.Wanted, out.ServedPorts = s.Network.Served()
	if out.IsSilent = !isAttached; out.IsSilent {
		return out, nil
	}
	used, err := s.process.Usage()
	if err != nil {
		return out, failure.ErrFailed
	}
	out.CPUNanoseconds, out.MemoryBytes = used.CPU.Nanoseconds(), used.MemoryBytes
	if out.RunState, err = s.monitor.Status(ctx); err != nil {
		s.wakeUp() // makes Run notify the watchers once QEMU answers again
		out.IsSilent = true
		return out, nil
	}
	out.Fault = reportFault(s.progress.lastFault()) // after the query, since the error may have paused the guest since the status was read
	if out.State != control.StateRunning {
		return out, nil
	}
	isPaused := out.RunState == machine.StatusPaused
	if _, hasEnded := machine.EndOf(out.RunState); hasEnded {
		out.State = control.StateStopping
	} else if isPaused {
		out.State = control.StatePaused
	}
	out.GuestMemoryBytes, _ = s.monitor.GuestMemory(ctx, s.Clock.Now(), isPaused)
	return out, nil
}

// Pause implements control.Machine. If a stop begins while the guest is paused, the next press of the power
// button resumes the guest.
func (s *Supervisor) Pause(ctx context.Context) error {
	return s.changeState(ctx, "stop", machine.StatusPaused)
}

// Resume implements control.Machine.
func (s *Supervisor) Resume(ctx context.Context) error {
	return s.changeState(ctx, "cont", statusRunning)
}

// changeState executes a QMP command that changes the run state of a running or paused guest to state.
func (s *Supervisor) changeState(ctx context.Context, command, state string) error {
	if err := s.progress.checkRunning(); err != nil {
		return err
	}
	status, err := s.monitor.Status(ctx)
	switch {
	case err != nil:
		return failure.ErrFailed
	case status == state:
		return nil
	case status != statusRunning && status != machine.StatusPaused:
		return failure.ErrNotRunning
	}
	if err := s.monitor.Execute(ctx, command, nil, nil); err != nil {
		return failure.ErrFailed
	}
	s.Log.Info("Run state of the guest was changed through the control port", "runState", state)
	return nil
}

// Probe implements control.Machine.
func (s *Supervisor) Probe(ctx context.Context, port int32) error {
	if err := s.progress.checkRunning(); err != nil {
		return err
	}
	conn, err := s.Network.DialGuest(ctx, uint16(port)) //nolint:gosec // a port
	if err != nil {
		return fmt.Errorf("%w: %w", failure.ErrNoAnswer, err)
	}
	_ = conn.Close() // the guest has answered, so an error does not matter
	return nil
}

// Grow implements control.Machine.
func (s *Supervisor) Grow(ctx context.Context, sizes control.Sizes) (grown control.Sizes, err error) {
	if (s.CopyProgress != nil && !s.isAttached()) || s.IsStopping() {
		return grown, failure.ErrNotRunning
	}
	if err := s.waitAttached(ctx); err != nil {
		return grown, err
	}
	wanted := map[string]int64{}
	if sizes.RootDisk != 0 {
		wanted[launch.RootNode] = sizes.RootDisk
	}
	for name, size := range sizes.Volumes {
		wanted[launch.VolumeNode(name)] = size
	}
	for node := range wanted {
		if _, ok := s.Disks[node]; !ok {
			return grown, failure.ErrUnknown
		}
	}
	have, err := growDisks(ctx, s.monitor, wanted)
	if err != nil {
		s.Log.Error(err, "Disks cannot be grown")
		return grown, failure.ErrFailed
	}
	grown = control.Sizes{RootDisk: have[launch.RootNode], Volumes: map[string]int64{}}
	for name := range sizes.Volumes {
		grown.Volumes[name] = have[launch.VolumeNode(name)]
	}
	return grown, nil
}

// growDisks grows each disk to at least its size in sizes, whose keys are QEMU's node names, and returns the sizes of all
// disks. It skips a larger disk, since QEMU would cut off its end. QEMU's sizes are whole sectors: a size that is not a
// whole number of sectors is reported as it was requested.
func growDisks(ctx context.Context, m machine.Monitor, sizes map[string]int64) (have map[string]int64, err error) {
	have, err = m.DiskSizes(ctx)
	if err != nil {
		return nil, err
	}
	for node, size := range sizes {
		rounded := diskimage.WholeSectors(size)
		if have[node] > rounded {
			continue
		}
		if have[node] < rounded {
			if err := m.ResizeDisk(ctx, node, rounded); err != nil {
				return nil, fmt.Errorf("growing the disk %s: %w", node, err)
			}
		}
		have[node] = size
	}
	return have, nil
}
