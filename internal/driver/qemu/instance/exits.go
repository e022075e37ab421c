// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// Exit codes. A machine has none, so these follow the convention for processes: 0 for a
// normal end, and 128 plus the signal's number for a kill.
const (
	codeShutDown = 0
	CodePanicked = 1
	codeBroken   = 2
	CodeKilled   = 137
)

// ReasonKilled is the exit reason of a run whose QEMU ended without reporting why.
const ReasonKilled = machine.EndKilled

// exitCodes has the exit code for each reason for which QEMU's guest has ended.
var exitCodes = map[string]int{
	machine.EndCompleted: codeShutDown, machine.EndPanicked: CodePanicked, machine.EndInternalError: codeBroken,
}

// isCrash reports whether an exit was a crash of the guest.
func isCrash(exit driver.Exit) bool { return exit.Code == CodePanicked || exit.Code == codeBroken }

// OutputTail is how much of QEMU's log an exit includes.
const OutputTail = 1 << 10

// ExitFile returns the path of the file that records how a run ended. It is written once,
// before QEMU is made to quit. It is outside the server's directory, which a person may
// be about to remove.
func (inst *Instance) ExitFile() string {
	return inst.Host.StateDir.Path(EndsDir, string(inst.UID)+"."+inst.ID+"."+inst.Run+".json")
}

// RecordExit writes an exit, and returns the one that was written first. It adds the last output
// of QEMU to an exit that was not requested. It remembers an exit that could not be written, as
// first observed, so that the next observation returns the same.
func (inst *Instance) RecordExit(exit driver.Exit) (driver.Exit, error) {
	h, file := inst.Host, inst.ExitFile()
	if exit.Reason == ReasonKilled || isCrash(exit) {
		exit.Output = inst.LastOutput(OutputTail)
	}
	if before, ok := h.UnwrittenExits.Load(file); ok {
		exit = before
	}
	content, err := json.Marshal(exit)
	if err == nil {
		err = h.StateDir.Create(file, content)
	}
	switch {
	case err == nil && inst.IsGone(): // a server that was removed or released meanwhile lacks a record
		err = os.Remove(file)
	case errors.Is(err, fs.ErrExist):
		var first *driver.Exit
		if first, err = inst.readExit(); first != nil {
			exit = *first
		}
	}
	if err == nil {
		h.UnwrittenExits.Delete(file)
		return exit, nil
	}
	before, ok := h.UnwrittenExits.LoadOrStore(file, exit)
	if !ok {
		h.Log.Info("Machine has ended, and that cannot be written down", "uid", inst.UID, "end", exit.Reason, "cause", err.Error())
	}
	return before, h.StateDir.Explain(err)
}

// readExit returns how the run ended, nil where none is recorded. A file damaged by a
// power cut shows only that there was an exit.
func (inst *Instance) readExit() (*driver.Exit, error) {
	content, info, err := atomicfile.Read(inst.ExitFile(), maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return readEnd(inst.Supervisor().Record, inst.StartedAt, inst.Host.Clock)
	}
	if err != nil {
		return nil, err
	}
	var exit driver.Exit
	if json.Unmarshal(content, &exit) == nil && exit.Reason != "" {
		return &exit, nil
	}
	return &driver.Exit{Code: CodeKilled, Reason: ReasonKilled, At: info.ModTime()}, nil
}

// readEnd returns the exit that a supervisor has recorded in a file, nil if there is none. The run
// began at a time.
func readEnd(file string, began time.Time, c clock.PassiveClock) (*driver.Exit, error) {
	f, info, err := atomicfile.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no exit.
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	exit := &driver.Exit{Code: CodeKilled, Reason: ReasonKilled, At: info.ModTime()}
	end, err := supervisor.ReadEnd(f)
	switch {
	case errors.Is(err, supervisor.ErrDamaged):
		return exit, nil
	case err != nil || end == nil:
		return nil, err
	}
	// As far as it can be true. It is the same each time.
	exit.Output = machine.Printable(end.Output, OutputTail)
	switch code, known := exitCodes[end.Reason]; {
	case known:
		exit.Code, exit.Reason = code, end.Reason
	case end.Reason == machine.EndForced:
		exit.Reason = machine.EndForced
	}
	if !end.At.After(c.Now()) && !end.At.Before(began) {
		exit.At = end.At
	}
	return exit, nil
}

// RemoveExits removes the exits of a server's runs, but for one that is named.
func (h *Host) RemoveExits(uid types.UID, but string) {
	files, _ := filepath.Glob(h.StateDir.Path(EndsDir, string(uid)+".*"))
	for _, path := range files {
		if but == "" || !strings.Contains(filepath.Base(path), "."+but+".") {
			_ = os.Remove(path)
		}
	}
	h.UnwrittenExits.DeleteFunc(func(file string, _ driver.Exit) bool { return UIDOf(file) == uid })
}
