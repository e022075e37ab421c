// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outside does to engines and servers what others than Drover do: people, the
// engine's host, and the engine itself.
//
// Start with Disturb. fake.go, docker.go and qemu.go have what each engine is like from
// outside, and expect.go what Drover makes of it.
package outside

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// Disturbance is something that is done.
type Disturbance string

// The disturbances.
const (
	// Removed : the server is removed.
	Removed Disturbance = "removed"
	// Stopped : the server is stopped, and ends with code 0.
	Stopped Disturbance = "stopped"
	// Killed : the server's process is killed, as the kernel does where memory runs out.
	Killed Disturbance = "killed"
	// Paused : the server is paused.
	Paused Disturbance = "paused"
	// Resized : the server gets another number of CPUs.
	Resized Disturbance = "resized"
	// Renamed : the server gets another name on the engine.
	Renamed Disturbance = "renamed"
	// Suspended : the server's process is suspended for a while.
	Suspended Disturbance = "suspended"
	// SupervisorKilled : the process that follows the server's QEMU is killed.
	SupervisorKilled Disturbance = "supervisor killed"
	// SupervisorSuspended : it is halted for a while, and goes on.
	SupervisorSuspended Disturbance = "supervisor suspended"
	// SupervisorHalted : it is halted for good.
	SupervisorHalted Disturbance = "supervisor halted"
	// ContainerKilled : the first process of the server's container is killed, and so are all others of it.
	ContainerKilled Disturbance = "container killed"
	// Halted : the server's QEMU is halted for good.
	Halted Disturbance = "halted"
	// BothKilled : the supervisor and its QEMU are killed, so that no process records the end of the run.
	BothKilled Disturbance = "killed with its supervisor"
	// Away : the engine is out of reach for a while.
	Away Disturbance = "away"
	// Exchanged : another engine answers in the engine's place for a while.
	Exchanged Disturbance = "exchanged"
	// Restored : the engine is what it was when the workload began, as from a backup.
	Restored Disturbance = "restored"
	// Copied : for a while there is a second server with all that tells whose the first is.
	Copied Disturbance = "copied"
	// Superseded : the leader is halted, and another one leads for a while.
	Superseded Disturbance = "superseded"
	// ClockAhead : from then on the engine's clock is an hour ahead.
	ClockAhead Disturbance = "clock ahead"
	// ClockBehind : from then on it is an hour behind.
	ClockBehind Disturbance = "clock behind"
)

// clockSteps are by how much clocks step.
var clockSteps = map[Disturbance]time.Duration{ClockAhead: time.Hour, ClockBehind: -time.Hour}

// lasts is how long a disturbance lasts. QEMU and its supervisor have 5 s for a command. A supervisor is replaced if it
// is silent for 15 s, which one that is halted for good is.
var lasts = map[Disturbance]time.Duration{
	Suspended: 7 * time.Second, SupervisorSuspended: 7 * time.Second,
	Away: 300 * time.Millisecond, Exchanged: 300 * time.Millisecond, Copied: time.Second,
}

// Lasts returns how long the disturbance lasts, unless it is over at once.
func (d Disturbance) Lasts() time.Duration { return lasts[d] }

// ErrNoServer means that there is nothing to disturb.
var ErrNoServer = errors.New("there is no server")

// Disturb disturbs an engine, or the server that it has for a VirtualMachine. The caller must
// call undo, if there is one, once the disturbance has lasted.
func Disturb(ctx context.Context, e lab.Engine, w *lab.World, vm string, d Disturbance) (undo func() error, err error) {
	if d == Away || d == Exchanged {
		return e.Outage(ctx, w, d == Exchanged)
	}
	if step := clockSteps[d]; step != 0 {
		clock, ok := e.(interface {
			StepClock(w *lab.World, step time.Duration) error
		})
		if !ok {
			return nil, unknown(d)
		}
		return nil, clock.StepClock(w, step)
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
	case lab.Pod:
		return disturbPod(e, w, s, d)
	}
	return nil, unknown(d)
}

func unknown(d Disturbance) error { return fmt.Errorf("this engine has no server that is %q", d) }
