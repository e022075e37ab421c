// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervised starts, finds, replaces and ends the supervisor of each QEMU on this host. A supervisor is a process
// that runs package supervisor.
//
// Start with Machine. reach.go finds or replaces a supervisor, start.go starts one, and end.go ends it. state.go records
// which process it is.
package supervised

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// Names of the supervisor's files in a machine's directory. None of them belongs to the supervisor's user.
const (
	lockFile  = "supervisor.lock"
	socket    = "supervisor.sock"
	stateName = "supervisor.json"
	logFile   = "supervisor.log"
)

// ErrNoQEMU means that the machine's QEMU does not run, so that there is nothing to supervise.
var ErrNoQEMU = errors.New("QEMU does not run")

// Machine is a machine on this host.
type Machine struct {
	Machine machine.Machine
	// Program returns the installed drover-machine.
	Program func() (*installation.Program, error)
	// AreSeparate is set if machines run as other users than this program. A supervisor then must not run as this
	// program's user.
	AreSeparate bool
	// Record is the path of the record of how the run ends.
	Record string
	// Config is the configuration of the supervisor, without the token.
	Config supervisor.HostConfig
	// Sockets are the sockets of ports that the caller has already opened. The other ports are opened at a start.
	Sockets map[control.Port]*os.File
	// Reload returns the machine with its present configuration, since another run may have begun.
	Reload func() (Machine, error)
	// Starts limits how often a supervisor is started.
	Starts *proc.Starts
}

// MemoryBytes returns the supervisor's private memory, 0 if unknown. The memory of the program's file, which all
// supervisors share, does not count.
func (m Machine) MemoryBytes() int64 {
	s, err := m.state().readState()
	if err != nil || !s.isAlive() {
		return 0
	}
	figures, err := proc.ReadStats(proc.Path(s.PID, "status"))
	if err != nil {
		return 0
	}
	return figures["RssAnon"]
}

// IsSupervised reports whether the machine has a supervisor, which may be about to end.
func (m Machine) IsSupervised() (bool, error) { return m.Machine.IsLocked(lockFile) }

// newClient returns a client of a supervisor.
func (m Machine) newClient(s state) *control.Client {
	return control.NewLocalClient(s.Token, func(ctx context.Context) (net.Conn, error) { return m.Machine.DialSocket(ctx, socket) })
}

// state returns the file with the state of the supervisor.
func (m Machine) state() stateFile { return stateFile{m.Machine.File(stateName)} }

// checkQEMU fails for a QEMU of an earlier version of Drover, which lacks the socket for its network.
func (m Machine) checkQEMU() error {
	if m.hasFile(machine.NetworkSocket) || !m.hasFile(machine.EventsSocket) {
		return nil
	}
	return fmt.Errorf("an earlier version of Drover has started QEMU, without a network that this version can serve: end process %d, and Drover starts QEMU again", m.Machine.PID())
}

// hasFile reports whether a file of the machine's directory exists.
func (m Machine) hasFile(name string) bool {
	_, err := os.Lstat(m.Machine.File(name))
	return err == nil
}
