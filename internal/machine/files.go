// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/launch"
)

// openEndpoints opens the sockets and logs of QEMU. The caller must call closeAll, even after
// an error.
func (m Machine) openEndpoints(runLock *os.File) (opened launch.Endpoints, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, file := range files {
			_ = file.Close()
		}
	}
	opened.RunLock = runLock
	for _, socket := range []struct {
		name string
		to   **os.File
	}{{ControlSocket, &opened.Control}, {EventsSocket, &opened.Events}, {SerialSocket, &opened.Serial}, {NetworkSocket, &opened.Network}} {
		if *socket.to, err = m.Listen(socket.name); err != nil {
			return opened, closeAll, err
		}
		files = append(files, *socket.to)
	}
	if opened.SerialLog = m.Output; m.Output != nil {
		return opened, closeAll, nil
	}
	opened.SerialLog, err = os.OpenFile(m.File(SerialLogFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		files = append(files, opened.SerialLog)
	}
	return opened, closeAll, err
}

// AddAgent makes the socket that leads to the guest's agent, and returns its descriptor in
// QEMU. The caller holds the run lock, since a running QEMU would lose its socket.
func (m Machine) AddAgent(files *launch.Files) (fd int, err error) {
	socket, err := m.Listen(AgentSocket)
	if err != nil {
		return 0, err
	}
	return files.Add(socket), nil
}

// Listen makes a listening socket in the directory. It replaces the socket of an earlier run.
func (m Machine) Listen(socket string) (*os.File, error) {
	if err := os.Remove(m.File(socket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.File(socket), err)
	}
	listener := os.NewFile(uintptr(fd), m.File(socket))
	err = m.withSocketPath(socket, func(path string) error {
		// Bind creates the file with the mode that the socket has at that time.
		return errors.Join(unix.Fchmod(fd, 0o600), unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, unix.SOMAXCONN))
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}
