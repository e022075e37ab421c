// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exits records how the runs of servers ended, and reads what a supervisor and a guest have recorded of it.
//
// Start with Store, and with Record of one Run.
package exits

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// Dir is the name of the folder of the records.
const Dir = "ends"

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

// Store has the records of all servers in a folder.
type Store struct {
	StateDir *statedir.Dir
	Clock    clock.PassiveClock
	Log      logr.Logger
	// Unwritten holds the exits that could not be written for lack of space.
	Unwritten driver.SyncMap[Name, driver.Exit]
}

// Name names a run of a server.
type Name struct {
	UID     types.UID
	ID, Run string
}

// Run is a run of which a record may be there.
type Run struct {
	Name

	// EndFile is the record that the supervisor writes.
	EndFile string
	file    string
	machine machine.Machine
	began   time.Time
	store   *Store
}

// RunOf returns a run of a machine, which began at a time. Its record is written once, before QEMU is made to quit. It is
// outside the server's directory, which a person may be about to remove.
func (s *Store) RunOf(m machine.Machine, name Name, began time.Time) Run {
	base := s.StateDir.Path(Dir, string(name.UID)+"."+name.ID+"."+name.Run)
	return Run{Name: name, EndFile: base + ".end", file: base + ".json", machine: m, began: began, store: s}
}

// File returns the path of the record that this program writes.
func (r Run) File() string { return r.file }

// ResultFile returns the path of the guest's report about the run.
func (r Run) ResultFile() string { return strings.TrimSuffix(r.file, ".json") + ".result" }

// RecordExit writes an exit, and returns the one that was written first. It adds the last output
// of QEMU to an exit that was not requested. It remembers an exit that could not be written, as
// first observed, so that the next observation returns the same.
func (r Run) RecordExit(exit driver.Exit) (driver.Exit, error) {
	s := r.store
	if exit.Reason == ReasonKilled || isCrash(exit) {
		exit.Output = r.machine.LastOutput(OutputTail)
	}
	if before, ok := s.Unwritten.Load(r.Name); ok {
		exit = before
	}
	content, err := json.Marshal(exit)
	if err == nil {
		err = s.StateDir.Create(r.file, content)
	}
	switch {
	case err == nil && r.isServerGone(): // a server that was removed or released meanwhile lacks a record
		err = os.Remove(r.file)
	case errors.Is(err, fs.ErrExist):
		var first *driver.Exit
		if first, err = r.ReadExit(); first != nil {
			exit = *first
		}
	}
	if err == nil {
		s.Unwritten.Delete(r.Name)
		return exit, nil
	}
	before, ok := s.Unwritten.LoadOrStore(r.Name, exit)
	if !ok {
		s.Log.Info("Machine has ended, and that cannot be written down", "uid", r.UID, "end", exit.Reason, "cause", err.Error())
	}
	return before, s.StateDir.Explain(err)
}

func (r Run) isServerGone() bool {
	_, err := os.Lstat(r.machine.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// maxRecord is more than a record has.
const maxRecord = 4 << 20

// ReadExit returns how the run ended, nil where none is recorded. A file damaged by a
// power cut shows only that there was an exit.
func (r Run) ReadExit() (*driver.Exit, error) {
	content, info, err := atomicfile.Read(r.file, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return r.readEnd()
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

// WasForced reports whether the supervisor has ended the run by force.
func (r Run) WasForced() bool {
	exit, err := r.readEnd()
	return err == nil && exit != nil && exit.Reason == machine.EndForced
}

// readEnd returns the exit that the supervisor has recorded, nil if there is none.
func (r Run) readEnd() (*driver.Exit, error) {
	f, info, err := atomicfile.Open(r.EndFile)
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
	// Take only what is plausible, so that every read of the record gives the same exit.
	exit.Output = machine.Printable(end.Output, OutputTail)
	switch code, known := exitCodes[end.Reason]; {
	case known:
		exit.Code, exit.Reason = code, end.Reason
	case end.Reason == machine.EndForced:
		exit.Reason = machine.EndForced
	}
	if !end.At.After(r.store.Clock.Now()) && !end.At.Before(r.began) {
		exit.At = end.At
	}
	return exit, nil
}

// RemoveAll removes the records of a server's runs, except that of the run kept; empty for none.
func (s *Store) RemoveAll(uid types.UID, kept string) {
	files, _ := filepath.Glob(s.StateDir.Path(Dir, string(uid)+".*"))
	for _, path := range files {
		if kept == "" || !strings.Contains(filepath.Base(path), "."+kept+".") {
			_ = os.Remove(path)
		}
	}
	s.Unwritten.DeleteFunc(func(name Name, _ driver.Exit) bool { return name.UID == uid })
}

// ForgetMissing removes what is remembered of servers that do not exist.
func (s *Store) ForgetMissing(exists map[types.UID]bool) {
	s.Unwritten.DeleteFunc(func(name Name, _ driver.Exit) bool { return !exists[name.UID] })
}

// OfState returns the exit that a run state stands for, if the guest does not come back from it.
func OfState(status string) (exit driver.Exit, ended bool) {
	reason, ended := machine.EndOf(status)
	return driver.Exit{Code: exitCodes[reason], Reason: reason}, ended
}

// reasonError is the reason of an exit with a code, as docker has it.
const reasonError = "Error"

// AddResult adds to the exit of a guest that has shut down how its command has ended, which the guest has reported in the
// result file.
func (r Run) AddResult(exit *driver.Exit) error {
	if exit.Reason != machine.EndCompleted {
		return nil
	}
	f, err := os.OpenFile(r.ResultFile(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	claim, err := config.ReadClaim(f)
	switch {
	case err != nil:
		return err
	case claim.Ended:
		exit.Code = claim.Code
	default:
		exit.Code = config.CodeFailed
	}
	if exit.Code != 0 {
		exit.Reason = reasonError
	}
	exit.Message = claim.Message
	return nil
}
