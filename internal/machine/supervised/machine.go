// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package supervised gives each QEMU of this host its supervisor, a process of package supervisor: it starts it, finds it
// again, replaces and ends it.
//
// Start with Machine. reach.go finds or replaces its supervisor, start.go starts one, and end.go ends it. state.go has the
// record of which process that is.
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

// ErrNoQEMU means that there is no QEMU to follow.
var ErrNoQEMU = errors.New("QEMU does not run")

// Machine is a machine of this host, whose QEMU is to have a supervisor.
type Machine struct {
	Machine machine.Machine
	// Program returns the program, and fails where none can be started.
	Program func() (*installation.Program, error)
	// AreSeparate is set if machines run as other users than this program, so that no supervisor may have its user.
	AreSeparate bool
	// Record is the path of the record of how the run ends.
	Record string
	// Config is the configuration of the supervisor, without the token.
	Config supervisor.HostConfig
	// Sockets are the sockets of ports that the caller has already opened. A start opens those of the other ports.
	Sockets map[control.Port]*os.File
	// Reload returns the machine as it is now: another run may have begun since.
	Reload func() (Machine, error)
	// Starts bounds how often a supervisor is started.
	Starts *proc.Starts
}

// MemoryBytes returns the memory that only the supervisor uses, without the program, which all share; 0 if that is not
// known.
func (m Machine) MemoryBytes() int64 {
	s, err := m.state().readState()
	if err != nil || !s.isAlive() {
		return 0
	}
	figures, err := proc.ReadFigures(proc.Path(s.PID, "status"))
	if err != nil {
		return 0
	}
	return figures["RssAnon"]
}

// IsSupervised reports whether the machine has a supervisor, which may be about to end.
func (m Machine) IsSupervised() (bool, error) { return m.Machine.IsLocked(lockFile) }

// clientOf returns a client of a supervisor.
func (m Machine) clientOf(s state) *control.Client {
	return control.NewLocalClient(s.Token, func(ctx context.Context) (net.Conn, error) { return m.Machine.DialSocket(ctx, socket) })
}

// state returns the file with the state of the supervisor.
func (m Machine) state() stateFile { return stateFile{m.Machine.File(stateName)} }

// checkQEMU refuses a QEMU that no supervisor can serve any more.
func (m Machine) checkQEMU() error {
	if m.hasFile(machine.NetworkSocket) || !m.hasFile(machine.EventsSocket) {
		return nil
	}
	return fmt.Errorf("an earlier version of Drover has started QEMU, without a network that a supervisor can serve: end its process %d, and Drover starts it again", m.Machine.PID())
}

// hasFile reports whether a file of the machine's directory exists.
func (m Machine) hasFile(name string) bool {
	_, err := os.Lstat(m.Machine.File(name))
	return err == nil
}
