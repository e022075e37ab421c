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

	"k8s.io/apimachinery/pkg/types"

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

// exitCodes are those of the reasons for which QEMU's guest has ended.
var exitCodes = map[string]int{
	machine.EndCompleted: codeShutDown, machine.EndPanicked: CodePanicked, machine.EndInternalError: codeBroken,
}

// exitOf returns the exit that a run state stands for, if the guest does not come back from it.
func exitOf(status string) (exit driver.Exit, ended bool) {
	reason, ended := machine.EndOf(status)
	return driver.Exit{Code: exitCodes[reason], Reason: reason}, ended
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

// recordFile returns the path of the file in which the supervisor records how a run ended. What Drover records
// itself takes precedence.
func (inst *Instance) recordFile() string {
	if inst.Retained { // no caller asks for it
		return inst.File("end")
	}
	return inst.Host.StateDir.Path(EndsDir, string(inst.UID)+"."+inst.ID+"."+inst.Run+".end")
}

// readEnd returns the exit that the supervisor has recorded, nil if there is none.
func (inst *Instance) readEnd() (*driver.Exit, error) {
	f, info, err := atomicfile.Open(inst.recordFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no exit.
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	end, err := supervisor.ReadEnd(f)
	switch {
	case errors.Is(err, supervisor.ErrDamaged):
		return &driver.Exit{Code: CodeKilled, Reason: ReasonKilled, At: info.ModTime()}, nil
	case err != nil || end == nil:
		return nil, err
	}
	exit := inst.exitOfEnd(end, info.ModTime())
	return &exit, nil
}

// RecordExit records an exit as writeExit does, and adds the last output of QEMU to an exit
// that was not requested. It remembers an exit that could not be written, as first
// observed, so that the next observation returns the same.
func (inst *Instance) RecordExit(exit driver.Exit) (driver.Exit, error) {
	file := inst.ExitFile()
	if exit.Reason == ReasonKilled || isCrash(exit) {
		exit.Output = inst.LastOutput(OutputTail)
	}
	if before, ok := inst.Host.UnwrittenExits.Load(file); ok {
		exit = before
	}
	first, err := inst.writeExit(exit)
	if err == nil {
		inst.Host.UnwrittenExits.Delete(file)
		return first, nil
	}
	before, ok := inst.Host.UnwrittenExits.LoadOrStore(file, exit)
	if !ok {
		inst.Host.Log.Info("Machine has ended, and that cannot be written down", "uid", inst.UID, "end", exit.Reason, "cause", err.Error())
	}
	return before, inst.Host.StateDir.Explain(err)
}

// writeExit writes an exit, and returns the one that was written first. It leaves no
// record of a server that was removed or released meanwhile.
func (inst *Instance) writeExit(exit driver.Exit) (driver.Exit, error) {
	content, err := json.Marshal(exit)
	if err != nil {
		return exit, err
	}
	err = inst.Host.StateDir.Create(inst.ExitFile(), content)
	if err == nil && inst.IsGone() {
		return exit, os.Remove(inst.ExitFile())
	}
	if !errors.Is(err, fs.ErrExist) {
		return exit, err
	}
	first, err := inst.readExit()
	if err != nil || first == nil {
		return exit, err
	}
	return *first, nil
}

// readExit returns how the run ended, nil where none is recorded. A file damaged by a
// power cut shows only that there was an exit.
func (inst *Instance) readExit() (*driver.Exit, error) {
	content, info, err := atomicfile.Read(inst.ExitFile(), maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return inst.readEnd()
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
