// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"cloudnative.tw/drover/internal/driver"
)

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
	says := []string{fmt.Sprintf("ports[0].hostPort (http) is %d: it must be one of 1-2 (--qemu-host-ports)", own)}
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
		"localhost": driver.ErrInvalid, "127.0.0.1,x": driver.ErrInvalid, "224.0.0.1": driver.ErrInvalid, "255.255.255.255": driver.ErrInvalid, "127.1": driver.ErrInvalid,
	} {
		err := checkPorts([]driver.Port{{Port: 80, HostIP: ip}})
		if want == nil {
			assert.NoError(t, err)
			continue
		}
		wantError(t, err, want, "ports[0].hostIP is", ip)
	}
}

// TestHostIP checks that a port is open on the requested address only, and that this
// address is reported. A port of it that another machine or program has is a conflict.
func TestHostIP(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostIP: "127.0.0.2"}}
	s := reach(t, d, spec, driver.StateRunning)
	port := s.Ports[0].HostPort
	want := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: port, HostIP: "127.0.0.2"}}
	if !slices.Equal(s.Ports, want) || !slices.Equal(s.Addresses, []string{"127.0.0.2"}) || len(s.Pending) != 0 {
		t.Errorf("it is reached at %v by %+v, pending %v", s.Addresses, s.Ports, s.Pending)
	}
	for ip, isOpen := range map[string]bool{"127.0.0.2": true, "127.0.0.1": false} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("%s:%d", ip, port))
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != isOpen {
			t.Errorf("a connection to %s: %v", ip, err)
		}
	}

	other := e.spec()
	for ip, says := range map[string]string{
		"":            fmt.Sprintf("host port %d/tcp is not available", port),
		"127.0.0.2":   fmt.Sprintf("host port %d/tcp of 127.0.0.2 is not available", port),
		"203.0.113.9": "cannot assign requested address",
	} {
		other.Ports = []driver.Port{{Name: "http", Port: 80, HostPort: port, HostIP: ip}}
		refuses(t, d, other, driver.ErrRetry, says, driver.ReasonPortConflict)
	}
	other.Ports[0].HostIP = "127.0.0.3"
	reach(t, d, other, driver.StateRunning)

	moved := spec
	moved.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80, HostPort: port, HostIP: "127.0.0.4"}}
	if s := reach(t, d, moved, driver.StateRunning); !slices.Equal(s.Pending, []string{"ports"}) {
		t.Errorf("with another address pending are %v", s.Pending)
	}
	moved.Ports[0].HostIP = "127.0.0.3" // the other machine's
	moved.RestartRun = s.Run
	refuses(t, d, moved, driver.ErrRetry, "127.0.0.3", driver.ReasonPortConflict)
}
