// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine runs QEMU machines on this host: one process each, in a separate
// directory. It knows neither Kubernetes nor the drivers that use it.
//
// Start with Machine.Start in process.go, which takes a description of a machine (package
// launch) to a QEMU that answers, its guest still halted. The other files have one concern
// each:
//
//   - program.go finds out which features QEMU has and needs of the host, accelerator.go
//     which accelerator guests run on.
//   - process.go starts, finds and ends processes, and files.go opens what each gets;
//     started.go remembers which one was started; monitor.go talks to them by QMP.
//   - seed.go makes what cloud-init reads; logs.go reads what is printed.
//   - diskfault.go explains the disk errors that guests wait for.
//
// The packages below start QEMU as it is described (launch) and confined (confine), speak QMP
// (qmp) and the protocol of guest agents (agent), end the guest's network (edge), and know
// processes of this host (proc), control groups (cgroup) and the memory that guests share
// (memory). Package supervisor follows a QEMU until its guest has ended, and package control is
// how others speak to it.
//
// # Processes
//
// A machine outlives the program that started it, in a separate session. It is found
// again by its run lock, which the kernel frees when the machine ends, and by its
// directory. That is its working directory, and stays so when it is moved. The command
// line identifies the machine too, with -uuid and -name. StartedFile identifies the process
// even if it has freed the lock and changed its command line. The supervisor is another
// process, which may end and be replaced while the machine runs.
//
// A guest that shuts down or panics leaves its QEMU paused. Whoever follows it can then
// distinguish the two from each other and from a QEMU that was killed.
package machine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names in a machine's directory.
const (
	// RunLockFile is locked by the machine's QEMU while that runs.
	RunLockFile = "run.lock"
	// PIDFile has the process ID of QEMU.
	PIDFile = "pid"
	// StartedFile has which QEMU was started last, and how it is confined.
	StartedFile = "started.json"
	// SeedFile is the disk that cloud-init reads.
	SeedFile = "seed.iso"
	// ControlSocket speaks QMP, for one command at a time.
	ControlSocket = "ctl.sock"
	// EventsSocket speaks QMP, for the supervisor alone.
	EventsSocket = "events.sock"
	// SerialSocket is the serial console, for the supervisor alone.
	SerialSocket = "serial.sock"
	// NetworkSocket has the frames of the guest's network, for the supervisor alone.
	NetworkSocket = "network.sock"
	// AgentSocket leads to the guest's agent, for the supervisor alone.
	AgentSocket = "agent.sock"
	// SerialLogFile has the guest's output on its serial console.
	SerialLogFile = "serial.log"
	// LogFile has the output of QEMU.
	LogFile = "qemu.log"
	// OldLog is the suffix of the file that holds what a log had before it was cut.
	OldLog = ".1"
	// FailedLog is the suffix of the log of the last start that failed.
	FailedLog = ".failed"
)

// maxFileSize is more than PIDFile or StartedFile has.
const maxFileSize = 64 << 10

// Kinds of failure; test with errors.Is.
var (
	// ErrRunning means that another process has the machine's run lock.
	ErrRunning = errors.New("the machine runs already")
	// ErrProgram means that QEMU is missing, too old, or fails when it is queried.
	ErrProgram = errors.New("no usable QEMU")
	// ErrMachineTypes means that the machine types of this QEMU cannot be queried.
	ErrMachineTypes = errors.New("unknown machine types")
	// ErrMachineTypeLost means that this QEMU lacks the machine type that the machine was made with.
	ErrMachineTypeLost = errors.New("unknown machine type")
	// ErrNotStarted means that QEMU did not start.
	ErrNotStarted = errors.New("QEMU did not start")
	// ErrNoMemory means that QEMU did not start, since the host gave it no memory.
	ErrNoMemory = errors.New("no memory")
	// ErrDiskChanged means that QEMU did not start, since it could not use a disk or an image.
	ErrDiskChanged = errors.New("unusable disk")
	// ErrNoLog means that this part of the guest's log does not exist yet.
	ErrNoLog = errors.New("no log")
	// ErrNoRoom means that the guest waits for room on the host's disk.
	ErrNoRoom = errors.New("no room on the host's disk")
	// ErrDiskFault means that the guest waits for a disk that fails.
	ErrDiskFault = errors.New("disk error")
)

// kindError reads as its text alone, and is of a kind.
type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.err, e.kind} }

func errorf(kind error, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// Machine is a QEMU machine, by its directory.
type Machine struct {
	// Path is the machine's directory.
	Path string
	// UUID identifies the machine, for its guest and among the processes of the host.
	UUID string
	// Staging makes files that are moved into the directory once they are complete.
	Staging Staging
	// Output gets what the guest prints on its serial console; nil means SerialLogFile. The
	// guest waits while it is full.
	Output *os.File
}

// Staging is a folder on the file system of the machine's directory.
type Staging interface {
	// Temp makes a folder, and returns a function that removes it.
	Temp() (path string, remove func(), err error)
	// ReplaceVolatile creates or replaces a file, completely or not at all, whose content
	// means nothing after a power cut.
	ReplaceVolatile(path string, content []byte) error
}

// File returns the path of a file in the directory.
func (m Machine) File(name string) string { return filepath.Join(m.Path, name) }

// wholeFile is the run lock: a lock on an open file, which QEMU inherits without knowing
// of it. The kernel frees it when the last process that holds it ends. So it shows
// reliably whether a machine runs, and the process that starts a machine takes it first.
var wholeFile = unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}

// IsRunning reports whether any process holds the run lock.
func (m Machine) IsRunning() (bool, error) { return m.IsLocked(RunLockFile) }

// IsLocked reports whether any process holds a lock in the directory that TryLock takes.
func (m Machine) IsLocked(name string) (bool, error) {
	f, err := os.OpenFile(m.File(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	lock := wholeFile
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// ClaimRun takes the run lock for a process that is about to be started. It fails with
// ErrRunning if a process has it.
func (m Machine) ClaimRun() (*os.File, error) { return m.TryLock(RunLockFile) }

// TryLock takes a lock in the directory for a process that is about to be started and inherits the file. It fails
// with ErrRunning if a process has it.
func (m Machine) TryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(m.File(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	lock := wholeFile
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return nil, errors.Join(errorf(ErrRunning, "the server runs already: %w", err), f.Close())
	}
	return f, nil
}
