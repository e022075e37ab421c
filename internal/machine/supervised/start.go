// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervised

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/confine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// startSupervisor starts a supervisor, which inherits the lock.
func (m Machine) startSupervisor(ctx context.Context, lock *os.File) error {
	installed, err := m.Program()
	if err != nil {
		return fmt.Errorf("the supervisor of the machine cannot be started: %w", err)
	}
	if err := m.killLast(ctx); err != nil { // the last supervisor may run without its lock
		return err
	}
	s := start{machine: m, invocation: supervisor.Invocation{Program: installed.File(), Mark: m.Machine.Mark, Dir: m.Machine.Path, Config: m.Config, Lock: lock}}
	defer s.closeFiles()
	s.invocation.Config.Token = rand.Text()
	if err := s.openProcess(); err != nil {
		return err
	}
	if err := m.Starts.Count(m.Machine.Mark); err != nil {
		return fmt.Errorf("the supervisor is not started: %w: see %s", err, m.Machine.File(logFile))
	}
	if err := s.openFiles(ctx); err != nil {
		return err
	}
	return s.spawnProcess(ctx, state{Token: s.invocation.Config.Token, Program: installed.Digest(), Boot: proc.Boot()})
}

// start has the parameters of a new supervisor, and the files to close after its start.
type start struct {
	machine    Machine
	invocation supervisor.Invocation
	files      []*os.File
}

// keepFile registers a file for closeFiles.
func (s *start) keepFile(f *os.File, err error) (*os.File, error) {
	if err == nil {
		s.files = append(s.files, f)
	}
	return f, err
}

func (s *start) closeFiles() { control.CloseFiles(s.files...) }

// spawnProcess starts the process of a supervisor, and records its process ID. Before the start it records a state without
// a process ID: after an interrupted start, killLast then searches for the process.
func (s *start) spawnProcess(ctx context.Context, spawned state) error {
	f, err := s.machine.state().openFile()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := writeState(f, spawned); err != nil {
		return err
	}
	point := crashpoint.Begin("start supervisor", s.machine.Machine.Mark)
	cmd, err := supervisor.Spawn(ctx, s.invocation)
	point.End()
	if err != nil {
		return err
	}
	go func() { _ = proc.Wait(cmd) }()
	if spawned.StartTicks, err = proc.StartTicks(cmd.Process.Pid); err != nil {
		return fmt.Errorf("the supervisor has ended at once: see %s", s.machine.Machine.File(logFile))
	}
	spawned.PID = cmd.Process.Pid
	return writeState(f, spawned)
}

// openFiles opens the descriptors that a supervisor inherits, except for the pidfd of QEMU.
func (s *start) openFiles(ctx context.Context) (err error) {
	if s.invocation.Listener, err = s.keepFile(s.machine.Machine.Listen(socket)); err != nil {
		return err
	}
	for name, to := range map[string]**os.File{machine.EventsSocket: &s.invocation.Monitor, machine.SerialSocket: &s.invocation.Serial, machine.AgentSocket: &s.invocation.Agent, machine.NetworkSocket: &s.invocation.Network} {
		if *to, err = s.keepFile(s.machine.dialFile(ctx, name)); err != nil {
			return err
		}
	}
	if s.invocation.Record, err = s.keepFile(s.openRecord()); err != nil {
		return err
	}
	s.openPorts(ctx)
	return s.openLogs()
}

// openLogs opens the logs, and keeps the log of the last supervisor under another name, since it may say why that
// supervisor ended. It creates all files at the first start, since a later start may find the disk full.
func (s *start) openLogs() (err error) {
	create := func(name string, flag int) (*os.File, error) {
		return os.OpenFile(s.machine.Machine.File(name), os.O_CREATE|unix.O_NOFOLLOW|flag, 0o600)
	}
	for name, to := range map[string]**os.File{
		machine.SerialLogFile: &s.invocation.SerialLog, machine.SerialLogFile + machine.OldLog: &s.invocation.SerialAside,
		machine.LogFile: &s.invocation.Output, machine.LogFile + machine.OldLog: &s.invocation.OutputAside,
	} {
		if *to, err = s.keepFile(create(name, os.O_RDWR)); err != nil {
			return err
		}
	}
	if s.invocation.Config.OutputBytes > 0 {
		for _, name := range output.FileNames {
			f, err := s.keepFile(create(name, os.O_RDWR))
			if err != nil {
				return err
			}
			s.invocation.CommandOutput = append(s.invocation.CommandOutput, f)
		}
	}
	old, err := create(logFile+machine.OldLog, os.O_WRONLY)
	if err == nil {
		err = old.Close()
	}
	if err == nil {
		_ = os.Rename(s.machine.Machine.File(logFile), s.machine.Machine.File(logFile+machine.OldLog))
		s.invocation.Errors, err = s.keepFile(create(logFile, os.O_APPEND|os.O_WRONLY))
	}
	return err
}

// openPorts opens the wanted ports. It skips a port that cannot be opened: the supervisor then reports that it does not
// serve that port.
func (s *start) openPorts(ctx context.Context) {
	s.invocation.Ports = map[control.Port]*os.File{}
	for _, port := range s.machine.Config.Network.Wanted.Ports {
		socket := s.machine.Sockets[port]
		if socket == nil {
			opened, _, err := control.Listen(ctx, port)
			if socket, err = s.keepFile(opened, err); err != nil {
				continue
			}
		}
		s.invocation.Ports[port] = socket
	}
}

// openRecord opens the record of the run's end, and makes it if it is missing.
func (s *start) openRecord() (*os.File, error) {
	f, err := os.OpenFile(s.machine.Record, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = supervisor.MakeRecord(s.machine.Record); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(s.machine.Machine.Path); errors.Is(err, fs.ErrNotExist) { // the machine was removed meanwhile, with all records
		return nil, errors.Join(ErrNoQEMU, f.Close(), os.Remove(s.machine.Record))
	}
	return f, nil
}

// openProcess opens a pidfd of QEMU, and determines the user that QEMU runs as.
func (s *start) openProcess() error {
	pid := s.machine.Machine.PID()
	if pid == 0 {
		return ErrNoQEMU
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoQEMU, err)
	}
	s.invocation.Process, _ = s.keepFile(os.NewFile(uintptr(fd), "QEMU"), nil)
	user, group, err := proc.UserOf(pid)
	if err != nil || !s.machine.Machine.IsOwnProcess(pid) { // another process may have got the ID
		return errors.Join(ErrNoQEMU, err)
	}
	isOwn := user == uint32(os.Geteuid()) //nolint:gosec // a user ID
	switch {
	case isOwn && s.machine.AreSeparate:
		return errors.New("QEMU runs as the user of Drover, and must run as a separate user")
	case !isOwn:
		s.invocation.User = &confine.User{ID: user, GroupID: group}
	}
	return nil
}

// dialFile connects to a socket of QEMU. A socket that refuses means that QEMU is ending: it closes its sockets before the
// process ends.
func (m Machine) dialFile(ctx context.Context, name string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	conn, err := m.Machine.DialSocket(ctx, name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %w", ErrNoQEMU, err)
	}
	if tooOld := m.checkQEMU(); errors.Is(err, fs.ErrNotExist) && tooOld != nil {
		return nil, tooOld
	}
	if err != nil {
		return nil, err
	}
	f, err := conn.(*net.UnixConn).File()
	return f, errors.Join(err, conn.Close())
}
