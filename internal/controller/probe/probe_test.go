// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
)

// echoProber is a driver that can probe, and returns what it was called with.
type echoProber struct{ answer error }

func (a echoProber) Probe(ctx context.Context, uid types.UID, port int32) error {
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("no deadline")
	}
	return fmt.Errorf("called for %s %d: %w", uid, port, a.answer)
}

// awaitResult checks a prober until its probe has a result.
func awaitResult(t *testing.T, d driver.Prober, port int32, server driver.Server) (result policy.ProbeResult) {
	t.Helper()
	b := New(t.Context(), clock.RealClock{}, d, func(types.NamespacedName) {})
	vm := vmtest.ReportedVM().ReadinessProbe(port).Obj()
	server.UID, server.State, server.Run = "uid-1", driver.StateRunning, "run-1"
	observed := inventory.Observation{Answer: inventory.Present, Server: server}
	assert.Eventually(t, "the probe has a result", func(testing.TB) error {
		if result = b.Check(vm, observed); !result.Completed {
			return fmt.Errorf("it is %+v", result)
		}
		return nil
	})
	return result
}

// TestProbedByDriverOrAddress checks that the driver probes if it can, whatever the
// address. Otherwise the prober dials the address and the port of the server.
func TestProbedByDriverOrAddress(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	port := int32(listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	local := driver.Server{Addresses: []string{"127.0.0.1"}, Ports: []driver.Port{{Protocol: "TCP", Port: port, HostPort: 1}}}
	state := awaitResult(t, nil, port, local)
	assert.True(t, state.OK, "the address of the server: %+v", state)
	state = awaitResult(t, nil, port, driver.Server{})
	assert.True(t, !state.OK && strings.Contains(state.Message, "does not have an address"), "without an address: %+v", state)
	for _, server := range []driver.Server{local, {}} {
		state := awaitResult(t, echoProber{errors.New("not yet")}, port, server)
		want := fmt.Sprintf("readinessProbe: called for uid-1 %d: not yet", port)
		assert.True(t, !state.OK && state.Message == want, "the driver probes: %+v, want %q", state, want)
	}
	assert.NoError(t, listener.Close())
	state = awaitResult(t, nil, port, local)
	assert.True(t, !state.OK && strings.Contains(state.Message, "refused"), "no listener: %+v", state)
}
