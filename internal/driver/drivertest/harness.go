// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivertest is the contract suite that every driver passes.
//
// The test of a driver fills in a Harness and calls Run:
//
//	func TestContract(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{Open: ..., Spec: ..., ...})
//	}
//
// Start with Harness. suite.go has the table of cases; the other files have the
// cases by topic. Cases run in parallel on one engine: each uses separate UIDs and
// cluster id, and removes what it created.
package drivertest

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
)

// Harness describes a driver and its engine to the suite. A case that
// needs a function which is nil fails, unless Skips gives the reason.
type Harness struct {
	// Open connects to the engine as another controller of that cluster would.
	// All drivers that Open returns within one Run talk to the same engine. Open
	// closes them with t.Cleanup.
	Open func(t *testing.T, clusterID string) driver.Driver

	// Spec returns a small server that the driver can run. It runs until it is asked
	// to stop, and then ends with exit code 0. The suite sets UID, Namespace, Name,
	// Power and RestartPolicy.
	Spec func(t *testing.T) driver.ServerSpec

	// StubbornSpec is like Spec, but the guest ignores the request to stop. It is nil
	// if OutOfBand.IgnoreStop makes a running guest do so.
	StubbornSpec func(t *testing.T) driver.ServerSpec

	// OtherImage is an image, other than Spec's, that the engine can run.
	OtherImage string
	// IsDisk is set if the image of Spec is a disk. The fields of a command are not for disks, so the suite
	// leaves them to the tests of the driver.
	IsDisk bool
	// KeepsImage is set if the image of a server cannot change: Ensure refuses
	// another one and applies the rest.
	KeepsImage bool

	// Losable connects to an engine that can be made unreachable and reachable
	// again without disturbing the other cases, for example through a proxy. Its
	// servers continue while it is lost.
	Losable func(t *testing.T, clusterID string) Losable

	// OutOfBand acts on servers without the driver's knowledge.
	OutOfBand OutOfBand

	// Guest has the abilities of a guest for the cases of Consoler, LogReader, Executor, Dialer
	// and InterfaceLister, which apply to drivers that implement these.
	Guest Guest

	// Visible returns everything about a server that users other than root can read
	// from the engine: command lines, labels, environment, readable files. The
	// suite searches it for secrets.
	Visible func(t *testing.T, s driver.Server) string

	// FailCode is the exit code of a guest that fails by itself, if guests cannot
	// choose one; zero means 3.
	FailCode int

	// Restarts is set if the engine has a restarter, which follows
	// RestartPolicy.
	Restarts bool

	// ResizesLive is set if cpu and memory change at once; else they must wait for
	// a restart and be listed in Pending.
	ResizesLive bool

	// FixedID is set if the ID of a server derives from its VirtualMachine: one that is made
	// again has the same, and none is made while a released one has it.
	FixedID bool

	// FencesEach is set if epochs are left on servers, not on the engine: a change of one
	// server fences earlier leaders from that one. The error is an ErrRetry then, because
	// users may change what has the epoch, and ErrFenced suspends the driver.
	FencesEach bool

	// ResumesWatch is set if a watch outlasts the loss of the engine, and misses nothing that
	// was changed meanwhile. Until the engine is back, Usage may answer all the same.
	ResumesWatch bool

	// Skips maps names of cases to the reason why they do not apply to the engine.
	// Those cases are skipped.
	Skips map[string]string
}

// Losable is a connection that can be cut.
type Losable struct {
	Driver driver.Driver
	// Lose makes the engine unreachable; Restore makes it reachable again.
	Lose, Restore func()
}

// OutOfBand does what a person or the guest does. Each function returns when the
// engine has done it; the driver may notice later.
type OutOfBand struct {
	// Kill ends the run abnormally: the exit code is not 0, and the engine's
	// restarter, if any, does not start it again.
	Kill func(t *testing.T, s driver.Server)
	// Stop ends the run normally, from outside: exit code 0.
	Stop func(t *testing.T, s driver.Server)
	// Exit makes the guest end by itself with the given code.
	Exit func(t *testing.T, s driver.Server, code int)
	// Pause freezes the server.
	Pause func(t *testing.T, s driver.Server)
	// Start starts a server that is off.
	Start func(t *testing.T, s driver.Server)
	// Remove removes the server, running or not, retained or not.
	Remove func(t *testing.T, s driver.Server)
	// BurnCPU makes the running guest use CPU from now on.
	BurnCPU func(t *testing.T, s driver.Server)
	// IgnoreStop makes the running guest ignore the request to stop. It is nil if
	// StubbornSpec is set.
	IgnoreStop func(t *testing.T, s driver.Server)
}

// Guest is a guest that the cases of streams talk to.
type Guest = streams.Guest

// Commands are programs that such a guest can run.
type Commands = streams.Commands

// Decorated returns h with a decorator around every driver that it opens.
func (h Harness) Decorated(wrap func(driver.Driver) driver.Driver) Harness {
	bareOpen, bareLosable := h.Open, h.Losable
	h.Open = func(t *testing.T, clusterID string) driver.Driver {
		t.Helper()
		return wrap(bareOpen(t, clusterID))
	}
	if bareLosable != nil {
		h.Losable = func(t *testing.T, clusterID string) Losable {
			t.Helper()
			l := bareLosable(t, clusterID)
			l.Driver = wrap(l.Driver)
			return l
		}
	}
	return h
}
