// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
)

// streamCases returns the cases of package streams, which test optional interfaces.
func streamCases() (all []contractCase) {
	for _, c := range streams.Cases {
		all = append(all, contractCase{c.Name, func(t *testing.T, e *env) { c.Run(t, e.forStreams()) }})
	}
	return all
}

func (e *env) forStreams() *streams.Env {
	s := &streams.Env{
		Guest: e.Guest, Driver: e.driver, Cluster: e.cluster, Open: e.openDriver,
		Start: e.startGuest,
		Create: func(t *testing.T, name string) driver.ServerSpec {
			t.Helper()
			spec := e.newSpec(t, name)
			e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
			return spec
		},
		Stop: func(t *testing.T, spec driver.ServerSpec) {
			t.Helper()
			e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
		},
		Restart: func(t *testing.T, spec driver.ServerSpec, s driver.Server) driver.Server {
			t.Helper()
			return e.ensureNewRun(t, e.restartSpec(spec, s.Run, e.fromNow(time.Hour)), s.Run)
		},
	}
	if e.Losable != nil {
		s.Losable = func(t *testing.T) (d driver.Driver, lose, restore func()) {
			t.Helper()
			l := e.Losable(t, e.cluster)
			return l.Driver, l.Lose, l.Restore
		}
	}
	return s
}

// startGuest starts a server whose guest has the abilities of Harness.Guest.
func (e *env) startGuest(t *testing.T, name string) (driver.ServerSpec, driver.Server) {
	t.Helper()
	spec := e.newSpec(t, name)
	if e.Guest.Spec != nil {
		spec = e.nameSpec(e.Guest.Spec(t), spec.Namespace, name)
	}
	return spec, e.ensureState(t, spec, driver.StateRunning)
}
