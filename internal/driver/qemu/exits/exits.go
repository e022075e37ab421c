// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exits records how the runs of servers ended, from the reports of Drover, of supervisors and of guests.
//
// Start with Store, and with RecordExit and ReadExit of a Run.
package exits

import (
	"encoding/json"
	"errors"
	"fmt"
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

// Exit codes of machines follow the convention for processes: 0 for a normal end, and 128 plus
// the signal's number for a kill.
const (
	codeShutDown = 0
	CodePanicked = 1
	codeBroken   = 2
	CodeKilled   = 137
)

// ReasonKilled is the exit reason of a run whose QEMU ended without reporting why.
const ReasonKilled = machine.EndKilled

// exitCodes maps the reasons for which a guest can end to exit codes.
var exitCodes = map[string]int{
	machine.EndCompleted: codeShutDown, machine.EndPanicked: CodePanicked, machine.EndInternalError: codeBroken,
}

// isCrash reports whether an exit was a crash of the guest.
func isCrash(exit driver.Exit) bool { return exit.Code == CodePanicked || exit.Code == codeBroken }

// OutputTail is how many bytes of QEMU's log an exit includes.
const OutputTail = 1 << 10

// Store has the records of exits of all servers in a folder.
type Store struct {
	StateDir *statedir.Dir
	Clock    clock.PassiveClock
	Log      logr.Logger
	// Unwritten holds the exits that could not be written, for example for lack of space.
	Unwritten driver.SyncMap[Name, driver.Exit]
}

// Name names a run of a server.
type Name struct {
	UID     types.UID
	ID, Run string
}

// Run is a run of a server, whose exit may be recorded.
type Run struct {
	Name

	// EndFile is the file in which the supervisor records the exit, and file the one in which Drover does.
	EndFile string
	file    string
	machine machine.Machine
	began   time.Time
	store   *Store
}

// RunOf returns a run of a machine. The record of its exit is written once, before QEMU is made to quit. The record is
// outside of the server's directory, which a person may be removing.
func (s *Store) RunOf(m machine.Machine, name Name, began time.Time) Run {
	base := s.StateDir.Path(Dir, string(name.UID)+"."+name.ID+"."+name.Run)
	return Run{Name: name, EndFile: base + ".end", file: base + ".json", machine: m, began: began, store: s}
}

// File returns the path of the file in which Drover records the exit.
func (r Run) File() string { return r.file }

// ResultFile returns the path of the file to which the guest writes the exit code of its command.
func (r Run) ResultFile() string { return strings.TrimSuffix(r.file, ".json") + ".result" }

// RecordExit records an exit, or returns the exit that was recorded first. It adds the last output of
// QEMU to a crash or a kill. If the exit cannot be written, RecordExit keeps the first such exit in
// memory, so that later calls return the same.
func (r Run) RecordExit(exit driver.Exit) (driver.Exit, error) {
	s := r.store
	if exit.Reason == ReasonKilled || isCrash(exit) {
		exit.Output = r.machine.LastOutput(OutputTail)
	}
	if earlier, ok := s.Unwritten.Load(r.Name); ok {
		exit = earlier
	}
	content, err := json.Marshal(exit)
	if err == nil {
		err = s.StateDir.Create(r.file, content)
	}
	switch {
	case err == nil && r.isServerGone(): // another process has removed or released the server
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
	first, ok := s.Unwritten.LoadOrStore(r.Name, exit)
	if !ok {
		s.Log.Info("Machine has ended, and its exit cannot be recorded", "uid", r.UID, "end", exit.Reason, "cause", err.Error())
	}
	return first, s.StateDir.Explain(err)
}

func (r Run) isServerGone() bool {
	_, err := os.Lstat(r.machine.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// maxRecord is above the size of any record in bytes.
const maxRecord = 4 << 20

// ReadExit returns the recorded exit of the run, or nil. A file that a power cut has damaged
// proves only that the run has ended.
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

// readEnd returns the exit that the supervisor has recorded, or nil.
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
	// Ignore implausible values, so that every read of the record returns the same exit.
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

// RemoveAll removes the records of a server's runs, except the record of keptRun if it is not empty.
func (s *Store) RemoveAll(uid types.UID, keptRun string) {
	files, _ := filepath.Glob(s.StateDir.Path(Dir, string(uid)+".*"))
	for _, path := range files {
		if keptRun == "" || !strings.Contains(filepath.Base(path), "."+keptRun+".") {
			_ = os.Remove(path)
		}
	}
	s.Unwritten.DeleteFunc(func(name Name, _ driver.Exit) bool { return name.UID == uid })
}

// ForgetMissing drops the unwritten exits of servers that do not exist.
func (s *Store) ForgetMissing(exists map[types.UID]bool) {
	s.Unwritten.DeleteFunc(func(name Name, _ driver.Exit) bool { return !exists[name.UID] })
}

// OfState returns the exit for a run state of QEMU in which the guest has ended.
func OfState(status string) (exit driver.Exit, ended bool) {
	reason, ended := machine.EndOf(status)
	return driver.Exit{Code: exitCodes[reason], Reason: reason}, ended
}

// Reasons of exits with a code other than 0, the same as driver docker reports.
const (
	reasonError     = "Error"
	reasonOOMKilled = "OOMKilled"
)

// AddResult adds the exit code and message of a container image's command, which the guest has written to the result file,
// to the exit of a guest that has shut down.
func (r Run) AddResult(exit *driver.Exit) error {
	if exit.Reason != machine.EndCompleted {
		return nil
	}
	claim, err := r.readClaim()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
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
	exit.Signal, exit.Message = claim.Signal, claim.Message
	if claim.OOMKilled != "" && exit.Code != 0 {
		exit.Reason, exit.Message = reasonOOMKilled, fmt.Sprintf("the kernel of the guest has killed %s because the memory ran out", claim.OOMKilled)
	}
	return nil
}

// HasStarted reports whether the guest has reported that its command was started.
func (r Run) HasStarted() (bool, error) {
	claim, err := r.readClaim()
	return claim.Started || claim.Ended, err
}

// readClaim reads the result file. Its error is fs.ErrNotExist if there is none.
func (r Run) readClaim() (claim config.Claim, err error) {
	f, err := os.OpenFile(r.ResultFile(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return claim, err
	}
	defer func() { _ = f.Close() }()
	return config.ReadClaim(f)
}
