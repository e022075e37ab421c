// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams has the cases of the contract suite for the optional interfaces Consoler,
// LogReader, Executor, Dialer and InterfaceLister.
//
// Start with Cases. Package drivertest runs them for every driver, with an Env that starts
// servers. The tests of a driver say in a Guest how to talk to these servers.
package streams

import (
	"net"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// Cases are run in separate servers. Their names are keys of drivertest.Harness.Skips.
var Cases = []struct {
	Name string
	Run  func(t *testing.T, e *Env)
}{
	{"ConsoleReaders", testConsoleReaders},
	{"ConsoleWriter", testConsoleWriter},
	{"ConsoleEnds", testConsoleEnds},
	{"Logs", testLogs},
	{"LogsTail", testLogsTail},
	{"LogsFollow", testLogsFollow},
	{"LogsPrevious", testLogsPrevious},
	{"Exec", testExec},
	{"ExecInput", testExecInput},
	{"ExecTerminal", testExecTerminal},
	{"ExecEnds", testExecEnds},
	{"ExecOfManyCallers", testExecOfManyCallers},
	{"Dial", testDial},
	{"Interfaces", testInterfaces},
	{"StreamsRefused", testStreamsRefused},
	{"StreamsLost", testStreamsLost},
}

// Env has the driver that a case acts on.
type Env struct {
	Guest  Guest
	Driver driver.Driver
	// Cluster is the id that Driver was opened with.
	Cluster string
	// Open opens another driver on the same engine.
	Open func(t *testing.T, clusterID string) driver.Driver
	// Start starts a server whose guest has the abilities of Guest. Create creates a server
	// that never runs.
	Start  func(t *testing.T, name string) (driver.ServerSpec, driver.Server)
	Create func(t *testing.T, name string) driver.ServerSpec
	// Stop and Restart return once the server is stopped, or restarted.
	Stop    func(t *testing.T, spec driver.ServerSpec)
	Restart func(t *testing.T, spec driver.ServerSpec, s driver.Server) driver.Server
	// Losable returns a driver, and functions that make its engine unreachable and reachable.
	Losable func(t *testing.T) (d driver.Driver, lose, restore func())
}

// Guest says how a case talks to a guest. The suite uses only words that newWord returns, so
// that a guest can have commands of other letters.
type Guest struct {
	// Spec replaces Harness.Spec; nil means that the guest of Harness.Spec is such a guest.
	Spec func(t *testing.T) driver.ServerSpec
	// Print makes the guest print a word on its console, as a line if it can. Print returns when
	// the guest has received the request.
	Print func(t *testing.T, d driver.Driver, s driver.Server, word string)
	// Type returns the input for the console that makes the guest print a word there.
	Type func(word string) string
	// Commands that the guest can run.
	Commands Commands
	// Port accepts TCP connections. Talk checks that the guest is at the other end of a connection.
	Port int32
	Talk func(t *testing.T, conn net.Conn)
	// DeadPort is a reachable port at which the guest does not listen.
	DeadPort int32
}

// Commands are programs with their arguments that a guest can run.
type Commands struct {
	// Print prints a word as a line to standard output, Complain to standard error.
	Print, Complain func(word string) []string
	// Copy copies standard input to standard output.
	Copy []string
	// Exit exits with a code. Killed ends by the signal KILL.
	Exit   func(code int) []string
	Killed []string
	// NotExecutable is a file that exists but cannot be executed; nil if the guest has none.
	NotExecutable []string
	// Size prints the rows and columns of its terminal, as stty size does, whenever it has read
	// a line. It is nil if Exec with a terminal is ErrUnsupported.
	Size []string
}
