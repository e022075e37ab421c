// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
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

// outputTail is how much of QEMU's log the end of a run includes.
const outputTail = 1 << 10

// exitFile returns the path of the file that records how a run ended. It is written once,
// before QEMU is made to quit. It is outside the server's directory, which a person may
// be about to remove.
func (inst *instance) exitFile() string {
	return inst.driver.dir.Path(endsDir, string(inst.UID)+"."+inst.ID+"."+inst.Run+".json")
}

// recordExit records an end as noteEnd does, and adds the last output of QEMU to an end that
// was not requested. It keeps an end that could not be written in memory, as first seen,
// so that the next look finds the same.
func (inst *instance) recordExit(end driver.Exit) (driver.Exit, error) {
	file := inst.exitFile()
	if end.Reason == reasonKilled || isCrash(end) {
		end.Output = inst.LastOutput(outputTail)
	}
	if before, ok := inst.driver.unwrittenExits.Load(file); ok {
		end = before
	}
	first, err := inst.writeExit(end)
	if err == nil {
		inst.driver.unwrittenExits.Delete(file)
		return first, nil
	}
	before, ok := inst.driver.unwrittenExits.LoadOrStore(file, end)
	if !ok {
		inst.driver.Log.Info("Machine has ended, and that cannot be written down", "uid", inst.UID, "end", end.Reason, "cause", err.Error())
	}
	return before, inst.driver.dir.Explain(err)
}

// writeExit records an end, and returns the one that was recorded first. It leaves no
// record of a server that was removed or released meanwhile.
func (inst *instance) writeExit(end driver.Exit) (driver.Exit, error) {
	content, err := json.Marshal(end)
	if err != nil {
		return end, err
	}
	err = inst.driver.dir.Create(inst.exitFile(), content)
	if err == nil && !inst.mayExist() {
		return end, os.Remove(inst.exitFile())
	}
	if !errors.Is(err, fs.ErrExist) {
		return end, err
	}
	first, err := inst.readExit()
	if err != nil || first == nil {
		return end, err
	}
	return *first, nil
}

// readExit returns how the run ended, nil where no end is recorded. An end file damaged by a
// power cut shows only that there was an end.
func (inst *instance) readExit() (*driver.Exit, error) {
	content, err := os.ReadFile(inst.exitFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no end.
	}
	if err != nil {
		return nil, err
	}
	var end driver.Exit
	if json.Unmarshal(content, &end) == nil && end.Reason != "" {
		return &end, nil
	}
	info, err := os.Stat(inst.exitFile())
	if err != nil {
		return nil, err
	}
	return &driver.Exit{Code: codeKilled, Reason: reasonKilled, At: info.ModTime()}, nil
}

// removeExits removes the ends of earlier runs.
func (d *Driver) removeExits(uid types.UID) {
	old, _ := filepath.Glob(d.dir.Path(endsDir, string(uid)+".*.json"))
	for _, path := range old {
		_ = os.Remove(path)
	}
	d.unwrittenExits.DeleteFunc(func(file string, _ driver.Exit) bool { return uidOf(file) == uid })
}
