// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// taken returns a host port that another process has during the test.
func taken(t *testing.T) int32 {
	t.Helper()
	listener := framework.Listen(t, "tcp4", "0.0.0.0:0")
	return framework.PortOf(listener)
}

// TestTakenPort checks that a host port that another program has is named in the error.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	asked := taken(t)
	fixed := e.spec()
	fixed.Ports = []driver.Port{{Name: "web", Port: 8080, HostPort: asked}}
	refuses(t, d, fixed, driver.ErrRetry, fmt.Sprintf("ports[0] (web): host port %d/tcp is not available", asked), driver.ReasonPortConflict)
}

// probeTimeout is the default of users: after it, a guest that takes no connection counts as not ready.
const probeTimeout = time.Second

func probe(t testing.TB, d *Driver, spec driver.ServerSpec, port int32) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
	defer cancel()
	return d.Probe(ctx, spec.UID, port)
}

// TestGuestDoesNotListen checks that a guest without a network has taken no connection of a probe or
// a user, even though its host port accepts them.
func TestGuestDoesNotListen(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}
	s := reach(t, d, spec, driver.StateRunning)
	assert.Require(t, len(s.Ports) == 2, "open are %+v", s.Ports)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.Ports[0].HostPort))
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
	refuses := func(says string, call func(t testing.TB) error) {
		t.Helper()
		var err error
		// A QEMU that a loaded host keeps waiting cannot be asked in time.
		assert.Eventually(t, says, func(t testing.TB) error {
			if err = call(t); err == nil || strings.Contains(err.Error(), says) {
				return nil
			}
			return err
		})
		assert.True(t, err != nil, "a guest has taken a connection, want %s", says)
	}
	for port, message := range map[int32]string{
		80: "port 80 of the guest took no connection", 81: "port 81 of the guest took no connection",
	} {
		refuses(message, func(t testing.TB) error { return probe(t, d, spec, port) })
	}
	refuses("took no connection", func(t testing.TB) error {
		ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
		defer cancel()
		_, err := d.Dial(ctx, spec.UID, 80)
		wantError(t, err, driver.ErrRetry)
		return err
	})
	gone(t, d, spec)
	assert.True(t, probe(t, d, spec, 80) != nil, "a machine that is gone is ready")
}

// checkReach checks that the chosen ports are reported, lead to the guest once the probe
// succeeds, and stay the same for the next controller.
func (g *linuxGuest) checkReach(t *testing.T) {
	s := reach(t, g.d, g.spec, driver.StateRunning)
	if len(s.Addresses) != 3 || s.Addresses[0] != g.address(t).Addr().String() || len(s.Ports) != 5 || s.Ports[0].Port != 80 || s.Ports[0].Protocol != "TCP" || s.Ports[0].Name != "" {
		t.Fatalf("it still has %v and %+v", s.Addresses, s.Ports)
	}
	for _, port := range []int32{80, 7} { // on all addresses and on one
		assert.Eventually(t, "the probe succeeds", func(t testing.TB) error { return probe(t, g.d, g.spec, port) })
	}
	assert.Check(t, "once the probe has succeeded the guest answers", func(t testing.TB) error {
		_, err := g.tryAsk(t, "/")
		return err
	})
	assert.ErrorSays(t, "a port without a server", probe(t, g.d, g.spec, 82), "refused")
	listed, err := g.e.open(t).List(t.Context(), g.spec.UID)
	assert.NoError(t, err)
	assert.True(t, len(listed) == 1 && slices.Equal(listed[0].Ports, s.Ports) && slices.Equal(listed[0].Addresses, s.Addresses),
		"the next controller sees %+v, want %+v", listed, s)
	renamed := g.spec
	renamed.Ports = slices.Clone(g.spec.Ports)
	renamed.Ports[0].Name = "web"
	waiting := reach(t, g.d, renamed, driver.StateRunning)
	assert.True(t, len(waiting.Pending) == 0, "with another name pending are %v", waiting.Pending)
}

// TestHostPortRefused checks that a port outside the range is refused by name, for a new
// machine and for an existing one, which can still be stopped.
func TestHostPortRefused(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Port: 80}}
	own := reach(t, d, spec, driver.StateRunning).Ports[0].HostPort
	spec.Ports[0].HostPort = own
	o := e.options()
	o.HostPorts = "1-2"
	d = openWith(t, o)
	says := []string{fmt.Sprintf("spec.ports[0].hostPort (http) is %d: it must be one of 1-2 (--qemu-host-ports)", own)}
	refuses(t, d, spec, driver.ErrInvalid, says...)
	another := e.spec()
	another.Ports = spec.Ports
	refuses(t, d, another, driver.ErrInvalid, says...)
	off(t, d, spec)
	gone(t, d, spec)
	leavesNothing(t, d)
}

func TestCheckHostIP(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]error{
		"": nil, "127.0.0.1": nil, "0.0.0.0": nil, "192.0.2.1": nil,
		"::1": driver.ErrUnsupported, "::": driver.ErrUnsupported, "::ffff:127.0.0.1": driver.ErrUnsupported,
		"127.0.0.1,x": driver.ErrUnsupported, "224.0.0.1": driver.ErrInvalid, "255.255.255.255": driver.ErrInvalid,
	} {
		err := checkSatisfiable(driver.ServerSpec{Ports: []driver.Port{{Port: 80, HostIP: ip}}})
		if want == nil {
			assert.NoError(t, err)
			continue
		}
		wantError(t, err, want, "spec.ports[0].hostIP is", ip)
	}
}

// TestPortsAfterLostCall checks that a change of ports whose call was lost is made by the next one.
func TestPortsAfterLostCall(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	first := reach(t, d, spec, driver.StateRunning)
	inst := d.Host.InstanceOf(spec.UID)
	signalSupervisor(t, inst, syscall.SIGSTOP)
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	if _, err := d.Ensure(t.Context(), spec); err == nil {
		t.Fatal("a supervisor that is halted has taken a port")
	}
	signalSupervisor(t, inst, syscall.SIGCONT)
	s := reach(t, d, spec, driver.StateRunning)
	assert.Require(t, len(s.Ports) == 1 && s.Run == first.Run, "it is %+v", s)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.Ports[0].HostPort))
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
}

// TestPortLost checks that a port which another program takes while a supervisor is replaced is neither reported nor
// forgotten, and that neither the other ports nor a pause of the machine wait for it.
func TestPortLost(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "a", Protocol: "TCP", Port: 80}, {Name: "b", Protocol: "TCP", Port: 81}, {Name: "c", Protocol: "UDP", Port: 53}}
	first := reach(t, d, spec, driver.StateRunning)
	signalSupervisor(t, d.Host.InstanceOf(spec.UID), syscall.SIGKILL)
	var thief net.Listener
	assert.Eventually(t, "the supervisor gives its ports up", func(testing.TB) (err error) {
		thief, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf(":%d", first.Ports[0].HostPort))
		return err
	})
	t.Cleanup(func() { _ = thief.Close() })
	for range 2 { // a try changes nothing
		s := listAnswering(t, d, spec.UID)[0]
		assert.Require(t, s.Run == first.Run && slices.Equal(s.Ports, first.Ports[1:]) && s.NeedsEnsure, "without the port it is %+v", s)
		refuses(t, d, spec, driver.ErrRetry, fmt.Sprintf("host port %d/tcp is not available any more", first.Ports[0].HostPort), driver.ReasonPortConflict)
	}
	for _, c := range []struct {
		power driver.Power
		state driver.State
	}{{driver.PowerPaused, driver.StatePaused}, {driver.PowerOn, driver.StateRunning}} {
		spec.Power = c.power
		refuses(t, d, spec, driver.ErrRetry, "is not available any more", driver.ReasonPortConflict)
		s := listAnswering(t, d, spec.UID)[0]
		assert.True(t, s.State == c.state, "it is %s, want %s", s.State, c.state)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", first.Ports[1].HostPort))
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
	assert.NoError(t, thief.Close())
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Run == first.Run && slices.Equal(s.Ports, first.Ports) && !s.NeedsEnsure, "with the port again it is %+v, want %+v", s, first)
}

// TestHostIP checks that a port is open on the requested address only, and that this
// address is reported. A port of it that another machine or program has is a conflict.
func TestHostIP(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostIP: "127.0.0.2"}}
	s := reach(t, d, spec, driver.StateRunning)
	record, err := d.Host.InstanceOf(spec.UID).Load()
	assert.NoError(t, err)
	port, own := s.Ports[0].HostPort, record.Address.Addr().String()
	want := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: port, HostIP: "127.0.0.2"}}
	assert.True(t, slices.Equal(s.Ports, want) && slices.Equal(s.Addresses, []string{own, "127.0.0.2"}) && len(s.Pending) == 0,
		"it is reached at %v by %+v, pending %v", s.Addresses, s.Ports, s.Pending)
	for ip, isOpen := range map[string]bool{"127.0.0.2": true, "127.0.0.1": false} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", ip, port))
		if err == nil {
			_ = conn.Close()
		}
		assert.True(t, (err == nil) == isOpen, "a connection to %s: %v", ip, err)
	}

	other := e.spec()
	for ip, message := range map[string]string{
		"":            fmt.Sprintf("host port %d/tcp is not available", port),
		"127.0.0.2":   fmt.Sprintf("host port %d/tcp of 127.0.0.2 is not available", port),
		"203.0.113.9": "cannot assign requested address",
	} {
		other.Ports = []driver.Port{{Name: "http", Port: 80, HostPort: port, HostIP: ip}}
		refuses(t, d, other, driver.ErrRetry, message, driver.ReasonPortConflict)
	}
	other.Ports[0].HostIP = "127.0.0.3"
	reach(t, d, other, driver.StateRunning)

	moved := spec
	moved.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostPort: port, HostIP: "127.0.0.4"}}
	next := reach(t, d, moved, driver.StateRunning)
	assert.True(t, len(next.Pending) == 0 && next.Run == s.Run && slices.Equal(next.Addresses, []string{own, "127.0.0.4"}), "with another address it is %+v", next)
	for ip, want := range map[string]error{"127.0.0.4": nil, "127.0.0.2": unix.ECONNREFUSED} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", ip, port))
		if err == nil {
			_ = conn.Close()
		}
		assert.ErrorIs(t, "after the change, a connection to "+ip, err, want)
	}
	moved.Ports[0].HostIP = "127.0.0.3" // the other machine's
	refuses(t, d, moved, driver.ErrRetry, "127.0.0.3", driver.ReasonPortConflict)
}
