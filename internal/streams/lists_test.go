// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/assert"
)

// TestServers checks that all servers are listed to users with the separate right to list them, and that
// an engine that does not answer hides none of another.
func TestServers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) {
		h.Drivers["nameless"] = struct{ driver.Driver }{h.Drivers["stub"]}
	})
	f.driver.servers = []driver.Server{
		{UID: "u1", ID: "i1", Namespace: "demo", Name: "vm", State: driver.StateRunning},
		{UID: "u2", ID: "i2", Retained: true, State: driver.StateStopped},
		{UID: "u3", Err: errors.New("repair it")},
		{UID: "u4", ID: "i4", State: driver.StatePending},
	}
	response := f.request(t, f.server.URL+streams.ServersPath) //nolint:bodyclose // request closes it
	body, err := io.ReadAll(response.Body)
	assert.NoError(t, err)
	var got streams.ServerList
	assert.NoError(t, json.Unmarshal(body, &got))
	want := streams.ServerList{Drivers: []streams.DriverServers{
		{Driver: "bare", Error: got.Drivers[0].Error, Servers: []streams.Server{}},
		{Driver: "nameless", Error: "the driver does not report its engine's ID", Servers: []streams.Server{}},
		{Driver: "stub", EngineID: "engine-1", Servers: []streams.Server{
			{UID: "u1", ID: "i1", Namespace: "demo", Name: "vm", State: "Running", MayBeOrphan: true},
			{UID: "u2", ID: "i2", State: "Stopped", Retained: true},
			{UID: "u3", Error: "repair it"},
			{UID: "u4", ID: "i4", State: "Pending"},
		}},
	}}
	assert.True(t, reflect.DeepEqual(got, want) && strings.Contains(got.Drivers[0].Error, "away"), "got %s", body)
	a := f.rules.last
	assert.True(t, a.GetVerb() == "list" && a.GetResource() == "virtualmachines" && a.GetSubresource() == "servers" && a.GetNamespace() == "" && a.GetName() == "",
		"it is authorized as %+v", a)
	code, _, status := f.get(t, "mallory", streams.ServersPath)
	assert.True(t, code == http.StatusForbidden && strings.Contains(status.Message, `"virtualmachines/servers" in API group "cloudnative.tw" at the cluster scope`),
		"without the right the answer is %+v", status)
	code, header, _ := f.send(t, http.MethodPost, "alice", streams.ServersPath)
	assert.True(t, code == http.StatusMethodNotAllowed && header.Get("Allow") == "GET", "POST answers %d", code)
}

// TestServersUnread checks that a client which does not read the list is cut off, and that the
// log says who it was.
func TestServersUnread(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) { h.times.write = 500 * time.Millisecond })
	f.driver.servers = []driver.Server{{UID: "u1", Err: errors.New(strings.Repeat("x", 64<<20))}} // more than sockets hold
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.server.Listener.Addr().String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = io.WriteString(conn, "GET "+streams.ServersPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\n\r\n")
	f.wantEnd(t, `"user"="alice"`, `"stream"="servers"`, `"end"="Timeout"`)
}

// TestDecisions checks that only decisions about the VM that exists are shown, not those about
// one that is gone or had its name before, and that the answer says whether the replica leads.
func TestDecisions(t *testing.T) {
	t.Parallel()
	leads := atomic.Bool{}
	leads.Store(true)
	f := newFixture(t, func(h *Handler) {
		h.Decisions = func(key types.NamespacedName) decisions.History {
			record := func(sequence uint64, uid types.UID) decisions.Record {
				return decisions.Record{Sequence: sequence, Input: policy.Input{VM: policy.VM{UID: uid}}}
			}
			known := map[string][]decisions.Record{"demo/gone": {record(1, "uid-0")}, "demo/vm": {record(2, "uid-0"), record(3, "uid-1")}}
			return decisions.History{Replica: "r", Leads: leads.Load(), Decisions: known[key.String()]}
		}
	})
	ask := func(name string) decisions.History {
		t.Helper()
		response := f.request(t, f.server.URL+streams.Path("demo", name, streams.Decisions)) //nolint:bodyclose // request closes it
		var h decisions.History
		err := json.NewDecoder(response.Body).Decode(&h)
		assert.True(t, err == nil && response.StatusCode == http.StatusOK && h.Replica == "r", "%s: %v %s %+v", name, err, response.Status, h)
		return h
	}
	h := ask("vm")
	assert.True(t, h.Leads && len(h.Decisions) == 1 && h.Decisions[0].Sequence == 3, "%+v", h)
	a := f.rules.last
	assert.True(t, a.GetVerb() == "get" && a.GetSubresource() == "decisions" && a.GetNamespace() == "demo" && a.GetName() == "vm", "it is authorized as %+v", a)
	for user, want := range map[string]int{"alice": http.StatusNotFound, "mallory": http.StatusForbidden} {
		code, _, status := f.get(t, user, streams.Path("demo", "gone", streams.Decisions))
		assert.True(t, code == want, "%s gets %+v", user, status)
	}
	leads.Store(false)
	h = ask("vm")
	assert.True(t, !h.Leads, "%+v", h)
}
