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
func (d *Driver) observe(ctx context.Context, h *instance) (*instance, error) {
	return d.observeWithin(ctx, h, machine.CommandWithin)
}

// observeWithin is observe with a limit on the wait for QEMU's answer.
func (d *Driver) observeWithin(ctx context.Context, h *instance, within time.Duration) (*instance, error) {
	s, err := d.see(ctx, h, within)
	if isBroken(err) {
		s.broken = err
	}
	return s, err
}

func (d *Driver) see(ctx context.Context, h *instance, within time.Duration) (*instance, error) {
	s, err := h.load()
	if isBroken(err) {
		return h.seeBroken(err)
	}
	if err != nil {
		return s, err
	}
	if err := s.look(ctx, within); err != nil {
		return s, err
	}
	d.findFault(ctx, s)
	if err := d.findEnd(s); err != nil || s.on {
		return s, err
	}
	// A server that was removed meanwhile leaves nothing, not even how it ended.
	there, err := h.exists()
	if !there && err == nil {
		d.forgetEnds(s.UID)
		return s, fs.ErrNotExist
	}
	return s, wrapCorrupt("mend "+h.Path, err)
}

func (h *instance) seeBroken(cause error) (*instance, error) {
	s := h.driver.instanceAt(h.Path)
	s.Retained = filepath.Base(filepath.Dir(h.Path)) == retainedDir
	if err := s.findOn(); err != nil && !isBroken(err) {
		return s, err
	}
	return s, cause
}

// findOn finds out whether its QEMU runs. Where that cannot be determined, the server
// counts as on, so that it is never wrongly reported as off.
func (s *instance) findOn() error {
	on, err := s.IsRunning()
	s.on = on || err != nil
	return wrapCorrupt("mend "+s.File(machine.RunLockFile), err)
}

func (s *instance) look(ctx context.Context, within time.Duration) error {
	if err := s.findOn(); err != nil || !s.on {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.status, s.silence = s.Status(asked)
	if s.silence == nil || ctx.Err() != nil || asked.Err() != nil {
		return ctx.Err()
	}
	// A QEMU that closes the connection may be about to end.
	if s.WaitStopped(ctx, leavesWithin) == nil {
		s.on, s.silence = false, nil
	}
	return ctx.Err()
}

// findEnd finds the end of the run. It continues with an end that cannot be recorded: a
// full disk must not prevent a server from being seen or removed.
func (d *Driver) findEnd(s *instance) error {
	if s.Phase != phaseOn {
		return nil // no guest was resumed: the previous run's end is not this one's
	}
	if s.Retained {
		return nil // no caller asks for it, and nothing would remove the record of it
	}
	end, over := ends[s.status]
	if s.on && !over {
		return nil
	}
	if !s.on {
		end = driver.Exit{Code: codeKilled, Reason: reasonKilled}
	}
	known, err := s.endOf()
	if err != nil {
		return wrapCorrupt("mend or remove "+s.endFile(), err)
	}
	if known == nil {
		end.At = d.Clock.Now()
		end, s.unkept = d.keepEnd(s, end)
		known = &end
	}
	s.end = known
	return nil
}

// alive reports whether a guest runs, or could continue.
func (s *instance) alive() bool { return s.on && (s.Phase == phaseStarting || s.end == nil) }

// ended reports whether a QEMU whose guest has ended waits to be reaped.
func (s *instance) ended() bool { return s.on && !s.alive() }

func (s *instance) stopping() bool { return s.alive() && s.Phase == phaseOn && s.Stop != nil }

func (s *instance) state() driver.State {
	switch {
	case !s.alive():
		return driver.StateStopped
	case s.Phase == phaseStarting && s.silence != nil:
		return driver.StateStarting
	case s.Phase == phaseStarting:
		return driver.StatePaused // QEMU is up, and a start continues only in a call
	case s.stopping():
		return driver.StateStopping
	case s.isPaused():
		return driver.StatePaused
	}
	return driver.StateRunning
}

func (s *instance) isPaused() bool {
	return s.status == machine.StatusPaused || s.status == machine.StatusPrelaunch || s.status == machine.StatusIOError
}

// report returns the server as the driver contract describes it.
func (s *instance) report() driver.Server {
	out := driver.Server{
		UID: s.UID, ID: s.ID, Namespace: s.Namespace, Name: s.Name,
		Run: s.Run, State: s.state(), StartedAt: s.StartedAt, Retained: s.Retained,
		Applied: driver.Resources{RootDiskBytes: s.Root.Size}, ImageID: s.Root.Image.digest(),
	}
	// A server that is off has no CPUs and no memory: the next start takes what the spec
	// says then.
	if s.alive() {
		out.Applied.CPUMilli, out.Applied.MemoryBytes = s.Settings.CPUMilli, s.Settings.MemoryBytes
		out.Note = s.CPUNote
	}
	switch {
	case s.broken != nil:
		out.Err = s.broken
	case !s.alive():
		out.Exit = s.end
	case s.silence != nil:
		out.Err = fmt.Errorf("QEMU does not answer: %w", s.silence)
		out.Progress = out.Err.Error()
	case s.status == machine.StatusIOError:
		out.Err = s.fault
	case s.stopping():
		out.Progress = "waiting for the guest to power off"
	}
	return out
}
