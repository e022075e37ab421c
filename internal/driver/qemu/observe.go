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
	// listQueryWithin bounds the query of one QEMU among many, so that those which do not
	// answer do not delay the report of the others.
	listQueryWithin = time.Second
	// goneWithin is how long a QEMU that closed the connection may take to be gone.
	goneWithin = 500 * time.Millisecond
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

// exitsByStatus are the states that a guest does not come back from, and the exits they stand for.
var exitsByStatus = map[string]driver.Exit{
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
	// exit is the end of the last run; nil while the run goes on and if there was none.
	// unkept says why it could not be recorded.
	exit    *driver.Exit
	exitErr error
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
	s, err := inst.observeState(ctx, within)
	if isBroken(err) {
		s.broken = err
	}
	return s, err
}

func (inst *instance) observeState(ctx context.Context, within time.Duration) (*instance, error) {
	s, err := inst.load()
	if isBroken(err) {
		return inst.observeUnreadable(err)
	}
	if err != nil {
		return s, err
	}
	if err := s.queryStatus(ctx, within); err != nil {
		return s, err
	}
	s.observeDiskFault(ctx)
	if err := s.observeExit(); err != nil || s.on {
		return s, err
	}
	// A server that was removed meanwhile leaves nothing, not even how it ended.
	there, err := inst.hasDirectory()
	if !there && err == nil {
		inst.driver.removeExits(s.UID)
		return s, fs.ErrNotExist
	}
	return s, wrapBroken("mend "+inst.Path, err)
}

func (inst *instance) observeUnreadable(cause error) (*instance, error) {
	s := inst.driver.instanceAt(inst.Path)
	s.Retained = filepath.Base(filepath.Dir(inst.Path)) == retainedDir
	if err := s.observeRunning(); err != nil && !isBroken(err) {
		return s, err
	}
	return s, cause
}

// observeRunning finds out whether its QEMU runs. Where that cannot be determined, the server
// counts as on, so that it is never wrongly reported as off.
func (inst *instance) observeRunning() error {
	on, err := inst.IsRunning()
	inst.on = on || err != nil
	return wrapBroken("mend "+inst.File(machine.RunLockFile), err)
}

func (inst *instance) queryStatus(ctx context.Context, within time.Duration) error {
	if err := inst.observeRunning(); err != nil || !inst.on {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	inst.status, inst.silence = inst.Status(asked)
	if inst.silence == nil || ctx.Err() != nil || asked.Err() != nil {
		return ctx.Err()
	}
	// A QEMU that closes the connection may be about to end.
	if inst.WaitStopped(ctx, goneWithin) == nil {
		inst.on, inst.silence = false, nil
	}
	return ctx.Err()
}

// observeExit finds the end of the run. It continues with an end that cannot be recorded: a
// full disk must not prevent a server from being seen or removed.
func (inst *instance) observeExit() error {
	if inst.Phase != phaseOn {
		return nil // no guest was resumed: the previous run's end is not this one's
	}
	if inst.Retained {
		return nil // no caller asks for it, and nothing would remove the record of it
	}
	end, over := exitsByStatus[inst.status]
	if inst.on && !over {
		return nil
	}
	if !inst.on {
		end = driver.Exit{Code: codeKilled, Reason: reasonKilled}
	}
	known, err := inst.readExit()
	if err != nil {
		return wrapBroken("mend or remove "+inst.exitFile(), err)
	}
	if known == nil {
		end.At = inst.driver.Clock.Now()
		end, inst.exitErr = inst.recordExit(end)
		known = &end
	}
	inst.exit = known
	return nil
}

// isAlive reports whether a guest runs, or could continue.
func (inst *instance) isAlive() bool {
	return inst.on && (inst.Phase == phaseStarting || inst.exit == nil)
}

// isEnded reports whether a QEMU whose guest has ended waits to be reaped.
func (inst *instance) isEnded() bool { return inst.on && !inst.isAlive() }

func (inst *instance) isStopping() bool {
	return inst.isAlive() && inst.Phase == phaseOn && inst.Stop != nil
}

func (inst *instance) driverState() driver.State {
	switch {
	case !inst.isAlive():
		return driver.StateStopped
	case inst.Phase == phaseStarting && inst.silence != nil:
		return driver.StateStarting
	case inst.Phase == phaseStarting:
		return driver.StatePaused // QEMU is up, and a start continues only in a call
	case inst.isStopping():
		return driver.StateStopping
	case inst.isPaused():
		return driver.StatePaused
	}
	return driver.StateRunning
}

func (inst *instance) isPaused() bool {
	return inst.status == machine.StatusPaused || inst.status == machine.StatusPrelaunch || inst.status == machine.StatusIOError
}

// describeServer returns the server as the driver contract describes it, without addresses.
func (inst *instance) describeServer() driver.Server {
	out := driver.Server{
		UID: inst.UID, ID: inst.ID, Namespace: inst.Namespace, Name: inst.Name,
		Run: inst.Run, State: inst.driverState(), StartedAt: inst.StartedAt, Retained: inst.Retained,
		Applied: driver.Resources{RootDiskBytes: inst.Root.Size}, ImageID: inst.Root.Image.digest(),
	}
	// A server that is off has no CPUs and no memory: the next start takes what the spec
	// says then.
	if inst.isAlive() {
		out.Applied.CPUMilli, out.Applied.MemoryBytes = inst.Settings.CPUMilli, inst.Settings.MemoryBytes
		out.Note = inst.CPUNote
	}
	switch {
	case inst.broken != nil:
		out.Err = inst.broken
	case !inst.isAlive():
		out.Exit = inst.exit
	case inst.silence != nil:
		out.Err = fmt.Errorf("QEMU does not answer: %w", inst.silence)
		out.Progress = out.Err.Error()
	case inst.status == machine.StatusIOError:
		out.Err = inst.fault
	case inst.isStopping():
		out.Progress = "waiting for the guest to power off"
	}
	return out
}

// observeDiskFault finds the disk error that has paused a guest.
func (inst *instance) observeDiskFault(ctx context.Context) {
	if inst.status != machine.StatusIOError {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listQueryWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		inst.fault = contractError(machine.DiskFault{}.Explain())
		return
	}
	defer c.Close()
	inst.fault = inst.findDiskFault(ctx, c)
}
