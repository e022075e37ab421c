// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/vmtest"
)

// host acts as a host that has some ports taken and offers others in turn.
type host struct {
	taken  []int32
	offers []int32
}

func (h *host) choose(_ context.Context, f machine.Forward) (int32, error) {
	switch {
	case slices.Contains(h.taken, f.HostPort):
		return 0, errors.New("address already in use")
	case f.HostPort != 0:
		return f.HostPort, nil
	case len(h.offers) == 0:
		return 0, errors.New("none is left")
	}
	next := h.offers[0]
	h.offers = h.offers[1:]
	return next, nil
}

func TestChooseForwards(t *testing.T) {
	t.Parallel()
	any80, fixed80 := driver.Port{Name: "http", Protocol: "TCP", Port: 80}, driver.Port{Name: "http", Protocol: "TCP", Port: 80, HostPort: 8080}
	any81, dns := driver.Port{Name: "more", Port: 81}, driver.Port{Name: "dns", Protocol: "UDP", Port: 53}
	had := func(protocol string, hostPort, port int32) machine.Forward {
		return machine.Forward{Protocol: protocol, HostPort: hostPort, Port: port, Chosen: true}
	}
	asked := machine.Forward{Protocol: "tcp", HostPort: 8080, Port: 80}
	for name, c := range map[string]struct {
		ports  []driver.Port
		before []machine.Forward
		host   host
		want   []machine.Forward
		says   string
	}{
		"none":                            {},
		"asked for":                       {ports: []driver.Port{fixed80}, want: []machine.Forward{asked}},
		"asked for and taken":             {ports: []driver.Port{any81, fixed80}, host: host{taken: []int32{8080}}, says: "ports[1] (http): host port 8080/tcp cannot be had"},
		"chosen":                          {ports: []driver.Port{any80, dns}, host: host{offers: []int32{1, 2}}, want: []machine.Forward{had("tcp", 1, 80), had("udp", 2, 53)}},
		"chosen and none left":            {ports: []driver.Port{any80}, says: "none is left"},
		"the same again":                  {ports: []driver.Port{any80, dns}, before: []machine.Forward{had("udp", 7, 53), had("tcp", 8, 80)}, want: []machine.Forward{had("tcp", 8, 80), had("udp", 7, 53)}},
		"another if that is taken":        {ports: []driver.Port{any80}, before: []machine.Forward{had("tcp", 8, 80)}, host: host{taken: []int32{8}, offers: []int32{9}}, want: []machine.Forward{had("tcp", 9, 80)}},
		"another's of before":             {ports: []driver.Port{any81}, before: []machine.Forward{had("tcp", 8, 80)}, host: host{offers: []int32{9}}, want: []machine.Forward{had("tcp", 9, 81)}},
		"one that was asked for is free":  {ports: []driver.Port{any80}, before: []machine.Forward{asked}, host: host{offers: []int32{9}}, want: []machine.Forward{had("tcp", 9, 80)}},
		"one that is asked for now":       {ports: []driver.Port{any81, fixed80}, before: []machine.Forward{had("tcp", 8080, 81)}, host: host{offers: []int32{8080, 9}}, want: []machine.Forward{had("tcp", 9, 81), asked}},
		"two for one, each keeps its own": {ports: []driver.Port{any80, any80}, before: []machine.Forward{had("tcp", 7, 80), had("tcp", 8, 80)}, want: []machine.Forward{had("tcp", 7, 80), had("tcp", 8, 80)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseForwards(t.Context(), c.ports, c.before, c.host.choose)
			if c.says != "" {
				wantError(t, err, driver.ErrRetry, c.says, driver.ReasonPortConflict)
			} else if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
}

// taken returns a host port that another process has during the test.
func taken(t *testing.T) int32 {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "0.0.0.0:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return portOf(listener.Addr())
}

// TestPortTakenMeanwhile checks a host port that was free when it was checked and is
// taken when QEMU opens it. It is replaced if it was chosen, and named in the error if
// the spec asked for it.
func TestPortTakenMeanwhile(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	late := taken(t)
	d.choose = func(ctx context.Context, f machine.Forward) (int32, error) {
		if p := late; f.HostPort == 0 && f.Port == 80 && p != 0 {
			late = 0 // once
			return p, nil
		}
		return machine.FreePort(ctx, f)
	}
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "ssh", Protocol: "TCP", Port: 22}, {Name: "http", Protocol: "TCP", Port: 80}}
	s, err := d.Ensure(t.Context(), spec)
	must(t, err)
	if s.State != driver.StateRunning || len(s.Ports) != 2 || late != 0 {
		t.Fatalf("it is %+v", s)
	}
	for _, p := range s.Ports {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.HostPort))
		must(t, err)
		must(t, conn.Close())
	}
	gone(t, d, spec)

	asked := taken(t)
	d.choose = func(_ context.Context, f machine.Forward) (int32, error) { return f.HostPort, nil }
	fixed := e.spec()
	fixed.Ports = []driver.Port{{Name: "web", Port: 8080, HostPort: asked}}
	_, err = d.Ensure(t.Context(), fixed)
	wantError(t, err, driver.ErrRetry, fmt.Sprintf("ports[0] (web): host port %d/tcp cannot be had", asked), driver.ReasonPortConflict)
	gone(t, d, fixed)
}

func probe(t *testing.T, d *Driver, spec driver.ServerSpec, port int32) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return d.Probe(ctx, spec.UID, port)
}

// TestProbeOfWhatDoesNotListen checks that a guest without a network has taken no
// connection, even though its host port accepts them.
func TestProbeOfWhatDoesNotListen(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}
	s := reach(t, d, spec, driver.StateRunning)
	if len(s.Ports) != 2 {
		t.Fatalf("open are %+v", s.Ports)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.Ports[0].HostPort))
	must(t, err)
	must(t, conn.Close())
	for port, says := range map[int32]string{
		80: fmt.Sprintf("port 80 of the guest, which host port %d leads to, took no connection", s.Ports[0].HostPort),
		53: "tcpSocket.port is 53", 81: "tcpSocket.port is 81",
	} {
		if err := probe(t, d, spec, port); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("port %d: got %v, want %q", port, err, says)
		}
	}
	gone(t, d, spec)
	if err := probe(t, d, spec, 80); err == nil {
		t.Error("a machine that is gone is ready")
	}
}

// TestReach checks that the chosen ports are reported, lead to the guest once the probe
// succeeds, and stay the same for the next controller.
func TestReach(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, _ := e.linuxSpec(t)
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "other", Protocol: "TCP", Port: 81}}
	s := reach(t, d, spec, driver.StateRunning)
	if len(s.Addresses) != 1 || len(s.Ports) != 2 || s.Ports[0].Port != 80 || s.Ports[0].Protocol != "TCP" || s.Ports[0].Name != "" {
		t.Fatalf("it is reached by %v and %+v", s.Addresses, s.Ports)
	}
	vmtest.Eventually(t, patience, "the probe succeeds", func() error { return probe(t, d, spec, 80) })
	if r, err := get(t, s.Ports[0].HostPort, "/"); err != nil || r.Boots != 1 {
		t.Errorf("once the probe has succeeded the guest tells %+v, %v", r, err)
	}
	if err := probe(t, d, spec, 81); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port that nobody serves: %v", err)
	}

	listed, err := e.open(t).List(t.Context(), spec.UID)
	must(t, err)
	if len(listed) != 1 || !slices.Equal(listed[0].Ports, s.Ports) || !slices.Equal(listed[0].Addresses, s.Addresses) {
		t.Errorf("the next controller sees %+v, want %+v", listed, s)
	}
	renamed := spec
	renamed.Ports = []driver.Port{{Name: "web", Protocol: "TCP", Port: 80}, {Name: "other", Port: 81}}
	if waiting := reach(t, d, renamed, driver.StateRunning); len(waiting.Pending) != 0 {
		t.Errorf("with another name pending are %v", waiting.Pending)
	}
	isNotReachedOff(t, d, spec)
	gone(t, d, spec)
}

func isNotReachedOff(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	spec.Power, spec.StopBy = driver.PowerOff, time.Now()
	if stopped := reach(t, d, spec, driver.StateStopped); len(stopped.Addresses) != 0 || len(stopped.Ports) != 0 {
		t.Errorf("a machine that is off is reached by %v and %+v", stopped.Addresses, stopped.Ports)
	}
}

func TestHostAddress(t *testing.T) {
	t.Parallel()
	var a hostAddress
	first := a.currentAddress(time.Unix(0, 0))
	if ip := net.ParseIP(first); ip == nil || ip.To4() == nil {
		t.Errorf("it is %q, want an IPv4 address", first)
	}
	a.text = "10.9.8.7"
	if held := a.currentAddress(time.Unix(0, 0).Add(addressHolds - 1)); held != "10.9.8.7" {
		t.Errorf("it was looked up again: %s", held)
	}
	if renewed := a.currentAddress(time.Unix(0, 0).Add(addressHolds)); renewed != first {
		t.Errorf("it was not looked up again: %s", renewed)
	}
}
