// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faketest runs the contract suite (drivertest) on the fake driver and
// on decorators around it.
//
// Start with InMemory.
package faketest

import (
	"io"
	"net"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// OptionsFunc changes the options that drivers are opened with.
type OptionsFunc func(fake.Options) fake.Options

// InMemory returns the harness of a new engine in memory, whose drivers have the changed options.
func InMemory(changeOptions OptionsFunc) drivertest.Harness {
	memory := fake.NewMemory(clock.RealClock{})
	h := Harness(OutOfBand{
		Edit: func(t *testing.T, uid types.UID, change func(*fake.Record)) {
			t.Helper()
			assert.NoError(t, memory.Edit(uid, change))
		},
		Remove: func(_ *testing.T, s driver.Server) {
			if s.Retained {
				memory.RemoveRetained(s.ID)
				return
			}
			memory.Remove(s.UID)
		},
	})
	h.Open = func(t *testing.T, clusterID string) driver.Driver {
		t.Helper()
		return OpenDriver(t, changeOptions(fake.Options{ClusterID: clusterID, Memory: memory}))
	}
	h.Losable = func(t *testing.T, clusterID string) drivertest.Losable {
		t.Helper()
		losable := fake.NewMemory(clock.RealClock{})
		return drivertest.Losable{
			Driver:  OpenDriver(t, changeOptions(fake.Options{ClusterID: clusterID, Memory: losable})),
			Lose:    func() { losable.SetAvailable(false) },
			Restore: func() { losable.SetAvailable(true) },
		}
	}
	return h
}

// newGuest says how the contract suite talks to the guests of package guest.
func newGuest() drivertest.Guest {
	command := func(name string) func(string) []string {
		return func(argument string) []string { return []string{name, argument} }
	}
	return drivertest.Guest{
		Print: func(t *testing.T, d driver.Driver, s driver.Server, word string) {
			t.Helper()
			x, _ := driver.As[driver.Executor](d)
			assert.NoError(t, assert.ErrorOf(x.Exec(t.Context(), s.UID, terminal.Command{Args: []string{"log", word}})))
		},
		Type: func(word string) string { return word },
		Commands: drivertest.Commands{
			Print: command("echo"), Complain: command("warn"), Copy: []string{"cat"},
			Exit:   func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
			Killed: []string{"exit", "137"},
		},
		Port: 80, DeadPort: 81, Talk: talkToEcho,
	}
}

func talkToEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	const text = "hello"
	received := make([]byte, len(text))
	_, writeErr := io.WriteString(conn, text)
	if _, readErr := io.ReadFull(conn, received); writeErr != nil || readErr != nil || string(received) != text {
		t.Errorf("sent %q and received %q: %v, %v", text, received, writeErr, readErr)
	}
}

// OpenDriver returns a new driver, or fails the test.
func OpenDriver(t *testing.T, o fake.Options) *fake.Driver {
	t.Helper()
	d, err := fake.New(o)
	assert.NoError(t, err)
	return d
}

// EnsureWithEpoch makes a server run, as the leader of an epoch.
func EnsureWithEpoch(t *testing.T, d driver.Driver, uid types.UID, epoch uint64) error {
	t.Helper()
	spec := NewSpec(t)
	spec.Target, spec.Namespace, spec.Name, spec.Power = driver.Target{UID: uid, Epoch: epoch}, "n", "n", driver.PowerOn
	_, err := d.Ensure(t.Context(), spec)
	return err
}

// OutOfBand has the actions of a person on an engine in memory or in a folder.
type OutOfBand struct {
	Edit   func(t *testing.T, uid types.UID, change func(*fake.Record))
	Remove func(t *testing.T, s driver.Server)
}

// Harness returns a harness without the functions that open drivers, for engines in memory and in folders.
func Harness(h OutOfBand) drivertest.Harness {
	return drivertest.Harness{
		Spec: NewSpec, OtherImage: "second", ResizesLive: true, OutOfBand: h.toDrivertest(), Guest: newGuest(),
	}
}

// NewSpec returns a spec that sets several fields.
func NewSpec(*testing.T) driver.ServerSpec {
	return driver.ServerSpec{
		CPUMilli: 2000, MemoryBytes: 4e9, RootDiskBytes: 40e9,
		Image: driver.Image{Source: "first"},
		Ports: []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}},
	}
}

func (h OutOfBand) toDrivertest() drivertest.OutOfBand {
	edit := func(change func(*fake.Record)) func(*testing.T, driver.Server) {
		return func(t *testing.T, s driver.Server) {
			t.Helper()
			h.Edit(t, s.UID, change)
		}
	}
	setState := func(state driver.State, exit *fake.Exit) func(*testing.T, driver.Server) {
		return edit(func(r *fake.Record) { r.State, r.Exit = state, exit })
	}
	return drivertest.OutOfBand{
		Kill:  setState(driver.StateStopped, &fake.Exit{Code: 137}),
		Stop:  setState(driver.StateStopped, nil),
		Start: edit(func(r *fake.Record) { r.State = driver.StateRunning }),
		Pause: setState(driver.StatePaused, nil),
		Exit: func(t *testing.T, s driver.Server, code int) {
			t.Helper()
			setState(driver.StateStopped, &fake.Exit{Code: code})(t, s)
		},
		Remove:     h.Remove,
		BurnCPU:    edit(func(r *fake.Record) { r.Load = 1 }),
		IgnoreStop: edit(func(r *fake.Record) { r.IgnoreShutdown = true }),
	}
}
