// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams has the cases of the contract suite for the optional interfaces Consoler,
// LogReader, Executor, Dialer and InterfaceLister.
//
// Start with Cases. Package drivertest runs them for every driver, with an Env that starts
// servers; a driver's harness describes its guests by a Guest.
package streams

import (
	"net"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// Cases are the cases by name.
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
	// Start starts a server whose guest has the abilities of Guest. Create makes one that
	// never runs.
	Start  func(t *testing.T, name string) (driver.ServerSpec, driver.Server)
	Create func(t *testing.T, name string) driver.ServerSpec
	// Stop and Restart return when that is done.
	Stop    func(t *testing.T, spec driver.ServerSpec)
	Restart func(t *testing.T, spec driver.ServerSpec, s driver.Server) driver.Server
	// Losable returns a driver whose engine lose makes unreachable.
	Losable func(t *testing.T) (d driver.Driver, lose, restore func())
}

// Guest is a guest that a case talks to. The words that the suite uses have only letters
// that word (helpers.go) lists.
type Guest struct {
	// Spec is like Harness.Spec, with such a guest; nil means that the suite uses Harness.Spec.
	Spec func(t *testing.T) driver.ServerSpec
	// Print makes the guest print a word on its console, as a line if it can. It returns
	// when the guest knows.
	Print func(t *testing.T, d driver.Driver, s driver.Server, word string)
	// Type returns what to write to the console so that the word is printed there.
	Type func(word string) string
	// Commands that the guest can run.
	Commands Commands
	// Port accepts TCP connections. Talk checks that the guest is at the other end of one.
	Port int32
	Talk func(t *testing.T, conn net.Conn)
	// DeadPort accepts none, although nothing else is in the way.
	DeadPort int32
}

// Commands are programs with their arguments.
type Commands struct {
	// Print prints a word and ends the line; Complain does so on standard error.
	Print, Complain func(word string) []string
	// Copy copies its input to its output until the input ends.
	Copy []string
	// Exit ends with a code, Killed by the signal KILL.
	Exit   func(code int) []string
	Killed []string
	// NotExecutable is a file that is there and no program, nil if there is none.
	NotExecutable []string
	// Size prints the rows and the columns of its terminal, as stty size does, whenever
	// it has read a line. It is nil if there are no terminals: then one is ErrUnsupported.
	Size []string
}
