// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outside disturbs engines and servers from outside of Drover, as people, the
// engine's host and the engine itself may do.
//
// Start with Disturb. fake.go, docker.go, qemu.go and pod.go disturb the servers of each
// engine, and expect.go says how Drover should react.
package outside

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// Disturbance is a kind of change that does not come from Drover.
type Disturbance string

// Values of Disturbance.
const (
	// Removed means that the server is removed.
	Removed Disturbance = "removed"
	// Stopped means that the server is stopped, and ends with code 0.
	Stopped Disturbance = "stopped"
	// Killed means that the server's process is killed, as the kernel does when memory runs out.
	Killed Disturbance = "killed"
	// Paused means that the server is paused.
	Paused Disturbance = "paused"
	// Resized means that the server gets another number of CPUs.
	Resized Disturbance = "resized"
	// Renamed means that the server gets another name on the engine.
	Renamed Disturbance = "renamed"
	// Suspended means that the server's process is suspended for a while.
	Suspended Disturbance = "suspended"
	// SupervisorKilled means that the process that follows the server's QEMU is killed.
	SupervisorKilled Disturbance = "supervisor killed"
	// SupervisorSuspended means that the supervisor is suspended for a while.
	SupervisorSuspended Disturbance = "supervisor suspended"
	// SupervisorHalted means that the supervisor is halted forever.
	SupervisorHalted Disturbance = "supervisor halted"
	// ContainerKilled means that the first process of the server's container is killed, and with it all others.
	ContainerKilled Disturbance = "container killed"
	// Halted means that the server's QEMU is halted forever.
	Halted Disturbance = "halted"
	// BothKilled means that the supervisor and its QEMU are killed, so that no process records the end of the run.
	BothKilled Disturbance = "killed with its supervisor"
	// Away means that the engine is unreachable for a while.
	Away Disturbance = "away"
	// Exchanged means that another engine answers at the same address for a while.
	Exchanged Disturbance = "exchanged"
	// Restored means that the engine is restored from a backup that was made when the workload began.
	Restored Disturbance = "restored"
	// Copied means that for a while there is a copy of the server with the same owner.
	Copied Disturbance = "copied"
	// Superseded means that the leader is halted for a while, until another one leads.
	Superseded Disturbance = "superseded"
	// ClockBehind means that from then on the engine's clock is an hour behind.
	ClockBehind Disturbance = "clock behind"
)

// lasts is how long a disturbance lasts. A suspension is longer than the 5 s that QEMU and its supervisor have for a
// command, and shorter than the 15 s after which a silent supervisor is replaced.
var lasts = map[Disturbance]time.Duration{
	Suspended: 7 * time.Second, SupervisorSuspended: 7 * time.Second,
	Away: 300 * time.Millisecond, Exchanged: 300 * time.Millisecond, Copied: time.Second,
}

// Lasts returns how long the disturbance lasts, 0 if it is momentary.
func (d Disturbance) Lasts() time.Duration { return lasts[d] }

// ErrNoServer means that there is nothing to disturb.
var ErrNoServer = errors.New("there is no server")

// Disturb disturbs an engine, or the server of a VirtualMachine. If undo is not nil, the caller
// must call it after d.Lasts().
func Disturb(ctx context.Context, e lab.Engine, w *lab.World, vm string, d Disturbance) (undo func() error, err error) {
	if d == Away || d == Exchanged {
		return e.Outage(ctx, w, d == Exchanged)
	}
	if d == ClockBehind {
		clock, ok := e.(interface {
			StepClock(w *lab.World, step time.Duration) error
		})
		if !ok {
			return nil, unsupportedError(d)
		}
		return nil, clock.StepClock(w, -time.Hour)
	}
	if f, ok := e.(folderEngine); ok && d == Restored {
		return nil, restore(ctx, f, w)
	}
	seen, err := e.Inspect(ctx, w, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range seen.Servers {
		if s.Name != vm || s.Released {
			continue
		}
		return disturbServer(ctx, e, w, s, d)
	}
	return nil, ErrNoServer
}

func disturbServer(ctx context.Context, e lab.Engine, w *lab.World, s lab.Server, d Disturbance) (undo func() error, err error) {
	switch e := e.(type) {
	case lab.Fake:
		return nil, disturbFake(w, e.Dir(w), e.Journal(w), s.UID, d)
	case lab.Docker:
		if d == Copied {
			return copyContainer(ctx, w, s)
		}
		return nil, disturbDocker(ctx, w, s, d)
	case lab.QEMU:
		return disturbQEMU(w, e.Dir(w), e.Journal(w), s, d)
	case lab.Containers:
		return disturbServer(ctx, e.QEMU, w, s, d)
	case lab.Pod:
		return disturbPod(e, w, s, d)
	}
	return nil, unsupportedError(d)
}

func unsupportedError(d Disturbance) error {
	return fmt.Errorf("a server of this engine cannot be %q", d)
}
