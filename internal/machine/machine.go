// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine runs QEMU machines on this host: one process each, in a separate
// directory. It knows neither Kubernetes nor the drivers that use it.
//
// Start with Machine.Start in process.go. It starts a QEMU from a description (package
// launch), waits until QEMU answers, and leaves the guest halted. The other files have one
// concern each:
//
//   - program.go queries the version and machine types of QEMU; accelerator.go chooses KVM
//     or TCG.
//   - process.go starts, finds and ends processes; files.go opens their sockets and logs;
//     started.go records the last process; monitor.go sends QMP commands.
//   - seed.go makes the disk for cloud-init; logs.go reads and cuts logs.
//   - diskfault.go explains the disk errors that pause guests.
//
// The packages below start QEMU (launch), confine it (confine), and speak QMP (qmp) and the
// protocol of guest agents (agent). Package edge is the host's end of the guest's network.
// Packages proc, cgroup and memory read processes, control groups and shared memory. Package
// supervisor follows a QEMU until its guest has ended, and package control is the protocol to
// a supervisor.
//
// # Processes
//
// A machine outlives the program that started it, in a separate session. It is found again
// by its run lock, which the kernel frees when the machine ends, and by its working
// directory, which stays the same when the directory is moved. The command line identifies
// the machine too, with -uuid and -name. StartedFile identifies the process even if it has
// freed the lock and changed its command line. The supervisor is another process, which may
// end and be replaced while the machine runs.
//
// A guest that shuts down or panics leaves its QEMU paused. The supervisor can then tell
// a shutdown from a panic, and both from a QEMU that was killed.
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
	// RunLockFile is locked by the machine's QEMU as long as QEMU runs.
	RunLockFile = "run.lock"
	// PIDFile has the process ID of QEMU.
	PIDFile = "pid"
	// StartedFile identifies the QEMU that was started last, and says how it is confined.
	StartedFile = "started.json"
	// SeedFile is the disk that cloud-init reads.
	SeedFile = "seed.iso"
	// ControlSocket speaks QMP, for one command at a time.
	ControlSocket = "ctl.sock"
	// EventsSocket speaks QMP, only for the supervisor.
	EventsSocket = "events.sock"
	// SerialSocket is the serial console, only for the supervisor.
	SerialSocket = "serial.sock"
	// NetworkSocket has the guest's Ethernet frames, only for the supervisor.
	NetworkSocket = "network.sock"
	// AgentSocket leads to the guest's agent, only for the supervisor.
	AgentSocket = "agent.sock"
	// SerialLogFile has the guest's output on its serial console.
	SerialLogFile = "serial.log"
	// LogFile has the output of QEMU.
	LogFile = "qemu.log"
	// OldLog is the suffix of the file with the content that was cut off a log.
	OldLog = ".1"
	// FailedLog is the suffix of the log of the last start that failed.
	FailedLog = ".failed"
)

// maxFileSize bounds how much of PIDFile or StartedFile is read.
const maxFileSize = 64 << 10

// Kinds of failure; test with errors.Is.
var (
	// ErrRunning means that another process has the machine's run lock.
	ErrRunning = errors.New("the machine runs already")
	// ErrProgram means that QEMU is missing, too old, or fails when it is queried.
	ErrProgram = errors.New("no usable QEMU")
	// ErrMachineTypes means that the machine types of this QEMU cannot be queried.
	ErrMachineTypes = errors.New("unknown machine types")
	// ErrMachineTypeLost means that this QEMU lacks the machine type of an existing machine.
	ErrMachineTypeLost = errors.New("unknown machine type")
	// ErrNotStarted means that QEMU did not start.
	ErrNotStarted = errors.New("QEMU did not start")
	// ErrNoMemory means that QEMU did not start, since it could not allocate memory.
	ErrNoMemory = errors.New("no memory")
	// ErrDiskChanged means that QEMU did not start, since it could not use a disk or an image.
	ErrDiskChanged = errors.New("unusable disk")
	// ErrNoLog means that this part of the guest's log does not exist yet.
	ErrNoLog = errors.New("no log")
	// ErrNoRoom means that the guest is paused, since the host's disk is full.
	ErrNoRoom = errors.New("no room on the host's disk")
	// ErrDiskFault means that the guest is paused, since a disk fails.
	ErrDiskFault = errors.New("disk error")
)

// kindError wraps a kind whose text is not a part of the error's text.
type kindError struct{ kind, err error }

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.err, e.kind} }

func errorf(kind error, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// Machine is a QEMU machine in a directory.
type Machine struct {
	// Path is the machine's directory.
	Path string
	// Mark identifies the machine on the command lines of its QEMU and its supervisor.
	Mark string
	// Staging makes files that are moved into the directory once they are complete.
	Staging Staging
	// Output receives the output of the serial console; nil means SerialLogFile. The guest
	// waits while Output is full, if it is a pipe.
	Output *os.File
}

// Staging is a folder on the file system of the machine's directory.
type Staging interface {
	// Temp makes a folder, and returns a function that removes it.
	Temp() (path string, remove func(), err error)
	// ReplaceVolatile creates or replaces a file atomically. The content may be lost in a
	// power cut.
	ReplaceVolatile(path string, content []byte) error
}

// File returns the path of a file in the directory.
func (m Machine) File(name string) string { return filepath.Join(m.Path, name) }

// writeLock is the kind of the run lock: an open file description lock on the whole file.
// QEMU inherits the open file, and the kernel frees the lock when the last process with that
// file ends. So the lock shows reliably whether a machine runs.
var writeLock = unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}

// IsRunning reports whether any process holds the run lock.
func (m Machine) IsRunning() (bool, error) { return m.IsLocked(RunLockFile) }

// IsLocked reports whether any process holds the lock that TryLock takes on a file.
func (m Machine) IsLocked(name string) (bool, error) {
	f, err := os.OpenFile(m.File(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	lock := writeLock
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("checking the lock on %s: %w", f.Name(), err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// ClaimRun takes the run lock before QEMU is started. It fails with ErrRunning if another
// process has the lock.
func (m Machine) ClaimRun() (*os.File, error) { return m.TryLock(RunLockFile) }

// TryLock locks a file in the directory. The caller passes the file to the process that it starts. TryLock fails
// with ErrRunning if another process has the lock.
func (m Machine) TryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(m.File(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	lock := writeLock
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return nil, errors.Join(errorf(ErrRunning, "the server runs already: %w", err), f.Close())
	}
	return f, nil
}
