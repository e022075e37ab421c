// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

const (
	// glanceWithin bounds the query of one QEMU among many, so that those which do not
	// answer do not delay the report of the others.
	glanceWithin = time.Second
	// leavesWithin is how long a QEMU that closed the connection may take to be gone.
	leavesWithin = 500 * time.Millisecond
)

// Exit codes. A machine has none, so these follow the convention for processes: 0 for a
// normal end, and 128 plus the signal's number for a kill.
const (
	codeShutDown = 0
	codePanicked = 1
	codeBroken   = 2
	codeKilled   = 137
)

// reasonKilled is the exit reason of a run whose QEMU ended without reporting why.
const reasonKilled = "Killed"

// ends are the states that a guest does not come back from, and the exits they stand for.
var ends = map[string]driver.Exit{
	machine.StatusShutdown: {Code: codeShutDown, Reason: "Completed"},
	machine.StatusPanicked: {Code: codePanicked, Reason: "GuestPanicked"},
	machine.StatusInternal: {Code: codeBroken, Reason: "InternalError"},
}

// isCrash reports whether a guest's end was a crash.
func isCrash(end driver.Exit) bool { return end.Code == codePanicked || end.Code == codeBroken }

// instance is one server: its directory and machine, its record, and what was observed of
// it.
type instance struct {
	machine.Machine
	record

	driver *Driver
	// on reports whether its QEMU runs, even if the guest in it has ended.
	on bool
	// status is QEMU's run state, empty if QEMU does not answer; silence says why.
	status  string
	silence error
	// end is the end of the last run; nil while the run goes on and if there was none.
	// unkept says why it could not be recorded.
	end    *driver.Exit
	unkept error
	// fault is the disk error that the guest waits for, if there is one.
	fault error
	// broken says what of the server cannot be read. Without its record, only its UID and
	// whether it is on are known.
	broken error
}

// observe looks at a server. It records an end that it finds and that is not recorded
// yet. It fails where there is no server, where ctx is done or the process cannot open
// any file. It fails with a brokenError where something of the server cannot be read, and
// then still returns what is known.
func (inst *instance) observe(ctx context.Context) (*instance, error) {
	return inst.observeWithin(ctx, machine.CommandWithin)
}

// observeWithin is observe with a limit on the wait for QEMU's answer.
func (inst *instance) observeWithin(ctx context.Context, within time.Duration) (*instance, error) {
	s, err := inst.see(ctx, within)
	if isBroken(err) {
		s.broken = err
	}
	return s, err
}

func (inst *instance) see(ctx context.Context, within time.Duration) (*instance, error) {
	s, err := inst.load()
	if isBroken(err) {
		return inst.seeBroken(err)
	}
	if err != nil {
		return s, err
	}
	if err := s.look(ctx, within); err != nil {
		return s, err
	}
	s.findFault(ctx)
	if err := s.findEnd(); err != nil || s.on {
		return s, err
	}
	// A server that was removed meanwhile leaves nothing, not even how it ended.
	there, err := inst.exists()
	if !there && err == nil {
		inst.driver.forgetEnds(s.UID)
		return s, fs.ErrNotExist
	}
	return s, wrapCorrupt("mend "+inst.Path, err)
}

func (inst *instance) seeBroken(cause error) (*instance, error) {
	s := inst.driver.instanceAt(inst.Path)
	s.Retained = filepath.Base(filepath.Dir(inst.Path)) == retainedDir
	if err := s.findOn(); err != nil && !isBroken(err) {
		return s, err
	}
	return s, cause
}

// findOn finds out whether its QEMU runs. Where that cannot be determined, the server
// counts as on, so that it is never wrongly reported as off.
func (inst *instance) findOn() error {
	on, err := inst.IsRunning()
	inst.on = on || err != nil
	return wrapCorrupt("mend "+inst.File(machine.RunLockFile), err)
}

func (inst *instance) look(ctx context.Context, within time.Duration) error {
	if err := inst.findOn(); err != nil || !inst.on {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	inst.status, inst.silence = inst.Status(asked)
	if inst.silence == nil || ctx.Err() != nil || asked.Err() != nil {
		return ctx.Err()
	}
	// A QEMU that closes the connection may be about to end.
	if inst.WaitStopped(ctx, leavesWithin) == nil {
		inst.on, inst.silence = false, nil
	}
	return ctx.Err()
}

// findEnd finds the end of the run. It continues with an end that cannot be recorded: a
// full disk must not prevent a server from being seen or removed.
func (inst *instance) findEnd() error {
	if inst.Phase != phaseOn {
		return nil // no guest was resumed: the previous run's end is not this one's
	}
	if inst.Retained {
		return nil // no caller asks for it, and nothing would remove the record of it
	}
	end, over := ends[inst.status]
	if inst.on && !over {
		return nil
	}
	if !inst.on {
		end = driver.Exit{Code: codeKilled, Reason: reasonKilled}
	}
	known, err := inst.endOf()
	if err != nil {
		return wrapCorrupt("mend or remove "+inst.endFile(), err)
	}
	if known == nil {
		end.At = inst.driver.Clock.Now()
		end, inst.unkept = inst.keepEnd(end)
		known = &end
	}
	inst.end = known
	return nil
}

// alive reports whether a guest runs, or could continue.
func (inst *instance) alive() bool {
	return inst.on && (inst.Phase == phaseStarting || inst.end == nil)
}

// ended reports whether a QEMU whose guest has ended waits to be reaped.
func (inst *instance) ended() bool { return inst.on && !inst.alive() }

func (inst *instance) stopping() bool {
	return inst.alive() && inst.Phase == phaseOn && inst.Stop != nil
}

func (inst *instance) state() driver.State {
	switch {
	case !inst.alive():
		return driver.StateStopped
	case inst.Phase == phaseStarting && inst.silence != nil:
		return driver.StateStarting
	case inst.Phase == phaseStarting:
		return driver.StatePaused // QEMU is up, and a start continues only in a call
	case inst.stopping():
		return driver.StateStopping
	case inst.isPaused():
		return driver.StatePaused
	}
	return driver.StateRunning
}

func (inst *instance) isPaused() bool {
	return inst.status == machine.StatusPaused || inst.status == machine.StatusPrelaunch || inst.status == machine.StatusIOError
}

// describe returns the server as the driver contract describes it, without addresses.
func (inst *instance) describe() driver.Server {
	out := driver.Server{
		UID: inst.UID, ID: inst.ID, Namespace: inst.Namespace, Name: inst.Name,
		Run: inst.Run, State: inst.state(), StartedAt: inst.StartedAt, Retained: inst.Retained,
		Applied: driver.Resources{RootDiskBytes: inst.Root.Size}, ImageID: inst.Root.Image.digest(),
	}
	// A server that is off has no CPUs and no memory: the next start takes what the spec
	// says then.
	if inst.alive() {
		out.Applied.CPUMilli, out.Applied.MemoryBytes = inst.Settings.CPUMilli, inst.Settings.MemoryBytes
		out.Note = inst.CPUNote
	}
	switch {
	case inst.broken != nil:
		out.Err = inst.broken
	case !inst.alive():
		out.Exit = inst.end
	case inst.silence != nil:
		out.Err = fmt.Errorf("QEMU does not answer: %w", inst.silence)
		out.Progress = out.Err.Error()
	case inst.status == machine.StatusIOError:
		out.Err = inst.fault
	case inst.stopping():
		out.Progress = "waiting for the guest to power off"
	}
	return out
}
