// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// asked is a driver that can probe, and returns what it was asked for.
type asked struct{ answer error }

func (a asked) Probe(ctx context.Context, uid types.UID, port int32) error {
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("no deadline")
	}
	return fmt.Errorf("asked for %s %d: %w", uid, port, a.answer)
}

// settle checks a prober until its probe has a result.
func settle(t *testing.T, d driver.Prober, port int32, server driver.Server) ProbeResult {
	t.Helper()
	b := &Prober{ctx: t.Context(), clock: clock.RealClock{}, driver: d, probes: map[types.NamespacedName]*probe{}, wake: func(types.NamespacedName) {}}
	vm := Observed().Probe(port).Obj()
	server.UID, server.State, server.Run = "uid-1", driver.StateRunning, "run-1"
	seen := inventory.Observation{Answer: inventory.Present, Server: server}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if state := b.Check(vm, seen); state.Completed {
			return state
		}
	}
	t.Fatal("the probe got no answer")
	return ProbeResult{}
}

// TestWhoProbes checks that the driver probes if it can, whatever the address.
// Otherwise the server is probed at its own address and port.
func TestWhoProbes(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	local := driver.Server{Addresses: []string{"127.0.0.1"}, Ports: []driver.Port{{Protocol: "TCP", Port: port, HostPort: 1}}}
	if state := settle(t, nil, port, local); !state.OK {
		t.Errorf("the server's own address: %+v", state)
	}
	if state := settle(t, nil, port, driver.Server{}); state.OK || !strings.Contains(state.Message, "no address") {
		t.Errorf("without an address: %+v", state)
	}
	for _, server := range []driver.Server{local, {}} {
		state := settle(t, asked{errors.New("not yet")}, port, server)
		if want := fmt.Sprintf("readinessProbe: asked for uid-1 %d: not yet", port); state.OK || state.Message != want {
			t.Errorf("the driver is asked: %+v, want %q", state, want)
		}
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if state := settle(t, nil, port, local); state.OK || !strings.Contains(state.Message, "refused") {
		t.Errorf("nobody listens: %+v", state)
	}
}

// TestPortsInStatus checks that they have the spec's names, whatever host port was
// chosen.
func TestPortsInStatus(t *testing.T) {
	tcp := func(name string, port, hostPort int32) api.Port {
		return api.Port{Name: name, Protocol: api.ProtocolTCP, Port: port, HostPort: hostPort}
	}
	spec := []api.Port{tcp("any", 80, 0), tcp("fixed", 80, 8080), {Name: "dns", Protocol: api.ProtocolUDP, Port: 53}, tcp("waits", 90, 9090)}
	open := []driver.Port{
		{Protocol: "TCP", Port: 53, HostPort: 5353},
		{Protocol: "UDP", Port: 53, HostPort: 5354},
		{Protocol: "TCP", Port: 80, HostPort: 8080},
		{Protocol: "TCP", Port: 80, HostPort: 32768},
		{Protocol: "TCP", Port: 90, HostPort: 9191},
	}
	vm := Observed().Spec(func(s *api.VirtualMachineSpec) { s.Ports = spec }).Obj()
	up := ChangeServer(Present(driver.StateRunning), func(s *driver.Server) { s.Ports = open })
	status := statusOf(vm, up)
	want := []string{" TCP 53 5353", "dns UDP 53 5354", "fixed TCP 80 8080", "any TCP 80 32768", " TCP 90 9191"}
	var got []string
	for _, p := range status.Ports {
		got = append(got, fmt.Sprintf("%s %s %d %d", p.Name, p.Protocol, p.Port, p.HostPort))
	}
	if strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("got %q, want %q", got, want)
	}
	vm.Status = status
	if off := statusOf(vm, Present(driver.StateStopped)); off.Ports != nil {
		t.Errorf("off it has %+v", off.Ports)
	}
	if away := statusOf(vm, Unknown(time.Minute)); len(away.Ports) != len(want) {
		t.Errorf("while the engine is away it has %+v, want what was known", away.Ports)
	}
}
