// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package process starts programs in a container image's machine and learns how they end. Start with
// Table.
//
// The first process of a machine inherits all orphans, so one call of wait4 for any child
// (Table.Reap) gets all exit statuses. Nothing else in the guest may wait for a process: not
// os/exec, and not os.Process.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/users"
)

// Command is a program to start.
type Command struct {
	// Path is the file to execute, Args its arguments from argv[0] on.
	Path string
	Args []string
	Env  []string
	Dir  string
	User users.User
	// Files become the descriptors from 0 on.
	Files []*os.File
	// Terminal makes the first file the terminal that controls the program.
	Terminal bool
}

// End is how a process has ended.
type End struct {
	// Code is 0 to 255. After a signal it is 128 plus the signal's number, which Signal has.
	Code, Signal int
}

// Table has the processes that this program has started.
type Table struct {
	// mu is held while a process is started or reaped, so that no end comes before its process is
	// in the table and no signal reaches another process of the same number.
	mu      sync.Mutex
	running map[int]*Process
	// started wakes Reap after a time without children.
	started chan struct{}
	// namespace starts processes, nil for those in this program's PID namespace.
	namespace *Namespace
	// proc is /proc of this program's PID namespace. It is nil before Enter, while the path /proc is the same.
	proc *os.File
}

// NewTable returns an empty table. Something has to call Reap.
func NewTable() *Table {
	return &Table{running: map[int]*Process{}, started: make(chan struct{}, 1)}
}

// Enter has all processes from now on started in a PID namespace. It keeps /proc open, since process 1 of the namespace
// mounts another one there, with the numbers of the namespace.
func (t *Table) Enter(n *Namespace) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.namespace = n
	t.proc, err = os.Open("/proc")
	return err
}

// Process is a program that was started.
type Process struct {
	PID   int
	table *Table
	done  chan struct{}
	end   End
}

// Done is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// End returns how the process ended, once Done is closed.
func (p *Process) End() End { return p.end }

// Signal sends a signal to the process, unless it has ended.
func (p *Process) Signal(signal syscall.Signal) error {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.running[p.PID] != p {
		return nil
	}
	return syscall.Kill(p.PID, signal)
}

// killAfter is the time between the two signals of EndSession. Driver docker waits as long when a caller leaves.
const killAfter = 2 * time.Second

// EndSession ends the process and all others of the session that it began, whatever their process groups are: by
// SIGHUP, and after a while by SIGKILL.
func (p *Process) EndSession() {
	p.signalSession(syscall.SIGHUP)
	<-time.After(killAfter)
	p.signalSession(syscall.SIGKILL)
}

// signalSession sends a signal to all processes of the session. It sends none if a later process has got p's PID: the
// session of that number is then the later process's.
func (p *Process) signalSession(signal syscall.Signal) {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if other := p.table.running[p.PID]; other != nil && other != p {
		return
	}
	for _, pid := range p.table.listPIDs() {
		if session, err := unix.Getsid(pid); err == nil && session == p.PID {
			_ = syscall.Kill(pid, signal)
		}
	}
}

// listPIDs returns the numbers of all processes of this program's PID namespace. t.mu is held.
func (t *Table) listPIDs() (pids []int) {
	proc := t.proc
	if proc == nil {
		var err error
		if proc, err = os.Open("/proc"); err != nil {
			return nil
		}
		defer func() { _ = proc.Close() }()
	}
	_, _ = proc.Seek(0, io.SeekStart)
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Start starts a program in a new session.
func (t *Table) Start(c Command) (*Process, error) {
	attributes := &syscall.ProcAttr{
		Dir: c.Dir, Env: c.Env,
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: c.Terminal,
			Credential: &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID, Groups: c.User.Groups},
		},
	}
	for _, f := range c.Files {
		attributes.Files = append(attributes.Files, f.Fd())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := t.namespace.forkExec(c.Path, c.Args, attributes)
	if err != nil {
		return nil, &Error{Path: c.Path, Err: err}
	}
	p := &Process{PID: pid, table: t, done: make(chan struct{})}
	t.running[pid] = p
	select {
	case t.started <- struct{}{}:
	default:
	}
	return p, nil
}

// Reap reaps all children, for ever.
func (t *Table) Reap() {
	for {
		var info unix.Siginfo
		// WNOWAIT leaves a zombie, so that no new process gets the PID before reapOne updates the table.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			t.reapOne()
		case errors.Is(err, unix.ECHILD):
			<-t.started
		}
	}
}

// reapOne reaps a child that has ended.
func (t *Table) reapOne() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return
	}
	if p := t.running[pid]; p != nil {
		delete(t.running, pid)
		p.end = endOf(status)
		close(p.done)
	}
}

func endOf(status unix.WaitStatus) End {
	if status.Signaled() {
		return End{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return End{Code: status.ExitStatus()}
}

// Kinds of failure to start a program; test with errors.Is.
var (
	// ErrNotFound means that the program, or the interpreter that it names, is not there.
	ErrNotFound = errors.New("not found")
	// ErrNotExecutable means that it exists and cannot be executed.
	ErrNotExecutable = errors.New("not executable")
)

// Error is why a program was not started.
type Error struct {
	Path string
	Err  error
}

// Error describes the failure.
func (e *Error) Error() string {
	switch {
	case errors.Is(e.Err, unix.ENOENT):
		return fmt.Sprintf("%.200q cannot be executed: the interpreter or loader that it names is not in the image", e.Path)
	case errors.Is(e.Err, unix.ENOEXEC):
		return fmt.Sprintf("%.200q cannot be executed: it is neither a program for this processor nor a script with an interpreter", e.Path)
	}
	return fmt.Sprintf("%.200q cannot be executed: %v", e.Path, e.Err)
}

// Is tells the two kinds apart.
func (e *Error) Is(target error) bool {
	missing := errors.Is(e.Err, unix.ENOENT)
	return target == ErrNotFound && missing || target == ErrNotExecutable && !missing
}

// Unwrap returns the system's error.
func (e *Error) Unwrap() error { return e.Err }
