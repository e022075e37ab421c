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

// exitsByStatus are the run states that a guest does not come back from, and the exits that
// they stand for.
var exitsByStatus = map[string]driver.Exit{
	machine.StatusShutdown: {Code: codeShutDown, Reason: "Completed"},
	machine.StatusPanicked: {Code: codePanicked, Reason: "GuestPanicked"},
	machine.StatusInternal: {Code: codeBroken, Reason: "InternalError"},
}

// isCrash reports whether an exit was a crash of the guest.
func isCrash(exit driver.Exit) bool { return exit.Code == codePanicked || exit.Code == codeBroken }

// outputTail is how much of QEMU's log an exit includes.
const outputTail = 1 << 10

// exitFile returns the path of the file that records how a run ended. It is written once,
// before QEMU is made to quit. It is outside the server's directory, which a person may
// be about to remove.
func (inst *instance) exitFile() string {
	return inst.driver.dir.Path(endsDir, string(inst.UID)+"."+inst.ID+"."+inst.Run+".json")
}

// recordExit records an exit as writeExit does, and adds the last output of QEMU to an exit
// that was not requested. It remembers an exit that could not be written, as first
// observed, so that the next observation returns the same.
func (inst *instance) recordExit(exit driver.Exit) (driver.Exit, error) {
	file := inst.exitFile()
	if exit.Reason == reasonKilled || isCrash(exit) {
		exit.Output = inst.LastOutput(outputTail)
	}
	if before, ok := inst.driver.unwrittenExits.Load(file); ok {
		exit = before
	}
	first, err := inst.writeExit(exit)
	if err == nil {
		inst.driver.unwrittenExits.Delete(file)
		return first, nil
	}
	before, ok := inst.driver.unwrittenExits.LoadOrStore(file, exit)
	if !ok {
		inst.driver.Log.Info("Machine has ended, and that cannot be written down", "uid", inst.UID, "end", exit.Reason, "cause", err.Error())
	}
	return before, inst.driver.dir.Explain(err)
}

// writeExit writes an exit, and returns the one that was written first. It leaves no
// record of a server that was removed or released meanwhile.
func (inst *instance) writeExit(exit driver.Exit) (driver.Exit, error) {
	content, err := json.Marshal(exit)
	if err != nil {
		return exit, err
	}
	err = inst.driver.dir.Create(inst.exitFile(), content)
	if err == nil && !inst.mayExist() {
		return exit, os.Remove(inst.exitFile())
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
func (inst *instance) readExit() (*driver.Exit, error) {
	content, err := os.ReadFile(inst.exitFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no exit.
	}
	if err != nil {
		return nil, err
	}
	var exit driver.Exit
	if json.Unmarshal(content, &exit) == nil && exit.Reason != "" {
		return &exit, nil
	}
	info, err := os.Stat(inst.exitFile())
	if err != nil {
		return nil, err
	}
	return &driver.Exit{Code: codeKilled, Reason: reasonKilled, At: info.ModTime()}, nil
}

// removeExits removes the exits of earlier runs.
func (d *Driver) removeExits(uid types.UID) {
	old, _ := filepath.Glob(d.dir.Path(endsDir, string(uid)+".*.json"))
	for _, path := range old {
		_ = os.Remove(path)
	}
	d.unwrittenExits.DeleteFunc(func(file string, _ driver.Exit) bool { return uidOf(file) == uid })
}
