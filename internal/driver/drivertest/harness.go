// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drivertest is the contract suite that every driver passes.
//
// A driver's own test fills in a Harness and calls Run:
//
//	func TestContract(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{Open: ..., Spec: ..., ...})
//	}
//
// Start reading at Harness; suite.go has the table of cases, the other files
// have the cases by theme. Cases run in parallel on one engine: each uses UIDs
// and a cluster id of its own and removes what it made.
package drivertest

import (
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// Harness is what the suite must know of a driver and its engine. A case that
// needs a function which is nil fails, unless Lacks says why there is none.
type Harness struct {
	// Open connects to the engine as one more controller of that cluster would.
	// All that Open returns within one Run talk to the same engine. It closes
	// what it opens with t.Cleanup.
	Open func(t *testing.T, clusterID string) driver.Driver

	// Spec is a small server that the driver can run, that stops with exit code
	// 0 when it is asked to, and that runs until then. The suite sets UID,
	// Namespace, Name, Power and RestartPolicy.
	Spec func(t *testing.T) driver.ServerSpec

	// StubbornSpec is like Spec, but the guest ignores the request to stop. Nil
	// where Hands.IgnoreStop makes a running guest do so.
	StubbornSpec func(t *testing.T) driver.ServerSpec

	// OtherImage is an image, other than Spec's, that the engine can run.
	OtherImage string
	// KeepsImage is set where the image of a server does not change: Ensure refuses
	// another one and applies the rest.
	KeepsImage bool

	// Losable connects to an engine that can be put out of reach and brought
	// back without disturbing the other cases, for example through a proxy. Its
	// servers live on while it is lost.
	Losable func(t *testing.T, clusterID string) Losable

	// Hands lays hands on servers behind the driver's back.
	Hands Hands

	// Visible returns all that others than root could learn of a server from
	// the engine: command lines, labels, environment, readable files. The suite
	// looks for secrets in it.
	Visible func(t *testing.T, s driver.Server) string

	// FailCode is the exit code of a guest that fails by itself, where guests
	// cannot choose one; 3 where it is zero.
	FailCode int

	// Restarts says that the engine has a restarter of its own, which follows
	// RestartPolicy.
	Restarts bool

	// ResizesLive says that cpu and memory change at once; else they must wait
	// for a restart and be named in Pending.
	ResizesLive bool

	// Patience is how long the suite waits for what must happen soon; 30 s
	// where it is zero.
	Patience time.Duration

	// Lacks maps names of cases to the reason why the engine has no such
	// notion. Those cases are skipped.
	Lacks map[string]string
}

// Losable is a connection that can be cut.
type Losable struct {
	Driver driver.Driver
	// Lose puts the engine out of reach; Restore brings it back.
	Lose, Restore func()
}

// Hands does what a person or the guest does. Each function returns when the
// engine has taken it; the driver may learn of it later.
type Hands struct {
	// Kill ends the run badly: exit code not 0, and the engine's restarter, if
	// any, does not start it again.
	Kill func(t *testing.T, s driver.Server)
	// Stop ends the run in good order, from outside: exit code 0.
	Stop func(t *testing.T, s driver.Server)
	// Exit makes the guest end by itself with the given code.
	Exit func(t *testing.T, s driver.Server, code int)
	// Pause freezes the server.
	Pause func(t *testing.T, s driver.Server)
	// Start starts a server that is off.
	Start func(t *testing.T, s driver.Server)
	// Remove takes the server away, running or not, retained or not.
	Remove func(t *testing.T, s driver.Server)
	// Burn makes the running guest use CPU from now on.
	Burn func(t *testing.T, s driver.Server)
	// IgnoreStop makes the running guest ignore the request to stop. Nil where
	// StubbornSpec is set.
	IgnoreStop func(t *testing.T, s driver.Server)
}

// Decorated is h with a decorator around every driver that it opens.
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
