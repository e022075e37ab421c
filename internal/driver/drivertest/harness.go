// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivertest is the contract suite: the tests that every driver has to pass.
//
// The test of a driver fills in a Harness and calls Run:
//
//	func TestContract(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{Open: ..., Spec: ..., ...})
//	}
//
// Start with Harness. suite.go has the table of cases; the other files have the
// cases by topic. Cases run in parallel on one engine: each has its UIDs and its
// cluster id, and removes the servers it created.
package drivertest

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
)

// Harness describes a driver and its engine to the suite. A case that
// needs a function which is nil fails, unless Skips gives the reason.
type Harness struct {
	// Open connects to the engine as another controller of the cluster would do.
	// All drivers that Open returns within one Run talk to the same engine. Open
	// closes each driver with t.Cleanup.
	Open func(t *testing.T, clusterID string) driver.Driver

	// Spec returns the spec of a small server that the driver can run. The server runs
	// until it is asked to stop, and then exits with code 0. The suite sets UID,
	// Namespace, Name, Power and RestartPolicy.
	Spec func(t *testing.T) driver.ServerSpec

	// StubbornSpec is like Spec, but the guest ignores the request to stop. It is nil
	// if OutOfBand.IgnoreStop makes a running guest ignore the request.
	StubbornSpec func(t *testing.T) driver.ServerSpec

	// OtherImage is an image, other than Spec's, that the engine can run.
	OtherImage string
	// IsDisk is set if the image of Spec is a disk. A disk cannot have fields such as command and env, so the
	// driver's tests cover these fields instead of the suite.
	IsDisk bool
	// KeepsImage is set if the image of a server cannot change: Ensure refuses
	// another image and applies the rest of the spec.
	KeepsImage bool

	// Losable connects to an engine that can be made unreachable and reachable
	// again without disturbing the other cases, for example through a proxy. Its
	// servers continue to run while the engine is unreachable.
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
	// choose the code; zero means 3.
	FailCode int

	// Restarts is set if the engine itself restarts servers according to
	// RestartPolicy.
	Restarts bool

	// ResizesLive is set if a change of cpu and memory applies to a running server.
	// Otherwise the change must be in Pending until a restart.
	ResizesLive bool

	// FixedID is set if the ID of a server derives from its VirtualMachine. A recreated server
	// has the same ID, and cannot be created while a released server still has that ID.
	FixedID bool

	// FencesPerServer is set if the driver stores epochs on servers, not on the engine: a change of
	// a server fences earlier leaders from this server only. Such a leader gets ErrRetry, since
	// users can edit the stored epoch, and ErrFenced would suspend the whole driver.
	FencesPerServer bool

	// ResumesWatch is set if a watch outlasts the loss of the engine, and reports the changes
	// made in between. Usage may succeed while the engine is lost.
	ResumesWatch bool

	// Skips has the cases to skip: it maps the name of a case to the reason why the case
	// does not apply to the engine.
	Skips map[string]string
}

// Losable is a connection that can be cut.
type Losable struct {
	Driver driver.Driver
	// Lose makes the engine unreachable; Restore makes it reachable again.
	Lose, Restore func()
}

// OutOfBand changes servers as a person with the engine's tools or the guest can do.
// Each function returns when the engine has made the change; the driver may notice later.
type OutOfBand struct {
	// Kill ends the run abnormally: the exit code is not 0, and the engine does
	// not restart the server.
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

// Guest is a guest that the cases of package streams talk to.
type Guest = streams.Guest

// Commands are programs that a Guest can run.
type Commands = streams.Commands

// Decorated returns h with every driver wrapped in a decorator.
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
