// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func testEngineID(t *testing.T, e *env) {
	ids := map[string]bool{}
	for _, d := range []driver.Driver{e.driver, e.driver, e.openDriver(t, string(newUID()))} {
		identifier, ok := driver.As[driver.Identifier](d)
		assert.Require(t, ok, "the driver does not implement driver.Identifier")
		id, err := identifier.EngineID(t.Context())
		assert.NoError(t, err)
		ids[id] = true
		assert.True(t, regexp.MustCompile(`^[A-Za-z0-9:._-]{1,128}$`).MatchString(id), "EngineID is %q, want 1 to 128 characters of [A-Za-z0-9:._-]", id)
	}
	assert.True(t, len(ids) == 1, "three calls returned the engine IDs %v, want the same each time", ids)
}

func testCreateTwice(t *testing.T, e *env) {
	spec := e.newSpec(t, "twice")
	first := e.ensureState(t, spec, driver.StateRunning)
	second := e.ensureState(t, spec, driver.StateRunning)
	wantSameRun(t, second, first)
	wantSameRun(t, listOne(t, e.driver, spec.UID), first)
	checkNewServer(t, spec, first)
}

func checkNewServer(t *testing.T, spec driver.ServerSpec, s driver.Server) {
	t.Helper()
	assert.True(t, s.UID == spec.UID && s.Namespace == spec.Namespace && s.Name == spec.Name,
		"got %s/%s of UID %s, want %s/%s of UID %s", s.Namespace, s.Name, s.UID, spec.Namespace, spec.Name, spec.UID)
	assert.True(t, s.ID != "" && s.Run != "" && !s.StartedAt.IsZero(),
		"a server that runs has ID %q, Run %q, StartedAt %v, want none of them empty", s.ID, s.Run, s.StartedAt)
	assert.True(t, s.Exit == nil && !s.Retained && len(s.Pending) == 0,
		"a new server has Exit %v, Retained %v, Pending %v, want none of them set", s.Exit, s.Retained, s.Pending)
	assert.True(t, s.Applied.CPUMilli == spec.CPUMilli && s.Applied.MemoryBytes == spec.MemoryBytes,
		"the server has %+v, want cpu %dm and memory %d", s.Applied, spec.CPUMilli, spec.MemoryBytes)
}

// testCreateFromTwoCallers checks that two leaders that act at the same time create one server.
func testCreateFromTwoCallers(t *testing.T, e *env) {
	spec := e.newSpec(t, "two-callers")
	other := e.openDriver(t, e.cluster)
	ids := newStringSet()
	runParallel(8, func(i int) {
		d := e.driver
		if i%2 == 1 {
			d = other
		}
		s, err := d.Ensure(t.Context(), spec)
		assert.True(t, err == nil || !isFinal(err), "Ensure: got the final error %v, want none or a transient one", err)
		ids.add(s.ID)
	})
	s := e.ensureState(t, spec, driver.StateRunning)
	ids.add(s.ID)
	all := ids.values()
	assert.True(t, len(all) == 1, "the callers got the servers %v, want the same server for all", all)
	wantSameRun(t, listOne(t, other, spec.UID), s)
	wantSameRun(t, listOne(t, e.driver, spec.UID), s)
}

func testCreateStopped(t *testing.T, e *env) {
	spec := e.newSpec(t, "born-stopped")
	s := e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	assert.True(t, s.ID != "" && s.Exit == nil, "a server that never ran has ID %q and Exit %+v, want an ID and no Exit", s.ID, s.Exit)
	up := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, up.ID == s.ID, "starting it gave the server %q, want the same one, %q", up.ID, s.ID)
}

func testCreatePaused(t *testing.T, e *env) {
	spec := e.newSpec(t, "born-paused")
	s := e.ensureState(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	up := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, up.ID == s.ID && up.Run == s.Run, "resuming changed the server from %s to %s", describeServers(s), describeServers(up))
}

// testAdoptAfterCrash checks that a controller which is started after a crash adopts the server.
func testAdoptAfterCrash(t *testing.T, e *env) {
	spec := e.newSpec(t, "adopted")
	before := e.ensureState(t, spec, driver.StateRunning)
	next := e.openDriver(t, e.cluster)
	wantSameRun(t, listOne(t, next, spec.UID), before)
	wantSameRun(t, ensureOnce(t, next, spec), before)
	n := len(listServers(t, next))
	assert.True(t, n == 1, "there are %d servers after the adoption, want 1", n)
}

// testWrongID checks that no call acts on a server whose ID differs from the Target's.
func testWrongID(t *testing.T, e *env) {
	spec := e.newSpec(t, "wrong-id")
	s := e.ensureState(t, spec, driver.StateRunning)
	wrong := driver.Target{UID: spec.UID, ID: s.ID + "0"}
	stop := e.stopSpec(spec)
	stop.Target = wrong
	wantErrorKind(t, "Ensure with another server's ID", driver.ErrNotFound, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), stop)) })
	for _, retain := range []bool{false, true} {
		wantErrorKind(t, "Delete with another server's ID", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), wrong, retain) })
	}
	wantSameRun(t, listOne(t, e.driver, spec.UID), s)
	spec.ID = s.ID
	wantSameRun(t, ensureOnce(t, e.driver, spec), s)
}

func testBadUID(t *testing.T, e *env) {
	for _, uid := range []types.UID{"", ".", "..", "../x", "/etc/x", "a/b", "a b", "a\nb", "a\x00b", "-rf", types.UID(strings.Repeat("a", 300))} {
		spec := e.newSpec(t, "bad-uid")
		spec.UID = uid
		wantErrorKind(t, "Ensure of the UID "+string(uid), driver.ErrInvalid, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) })
		err := errorAfterRetries(t, "Delete", driver.ErrInvalid, func() error { return e.driver.Delete(t.Context(), spec.Target, false) })
		assert.True(t, errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrNotFound), "Delete of the UID %q: got %v, want invalid or not found", uid, err)
	}
	left := listServers(t, e.driver)
	assert.True(t, len(left) == 0, "bad UIDs left %s", describeServers(left...))
}

// testOtherCluster checks that another cluster's servers are neither listed nor changed.
func testOtherCluster(t *testing.T, e *env) {
	spec := e.newSpec(t, "theirs")
	theirs := e.ensureState(t, spec, driver.StateRunning)
	d := e.openDriver(t, string(newUID()))
	all := listServers(t, d)
	assert.True(t, len(all) == 0, "List shows another cluster's %s", describeServers(all...))
	named := listServers(t, d, spec.UID)
	assert.True(t, len(named) == 0, "List by UID shows another cluster's %s", describeServers(named...))
	for _, target := range []driver.Target{{UID: spec.UID}, {UID: spec.UID, ID: theirs.ID}} {
		wantErrorKind(t, "Delete of another cluster's server", driver.ErrNotFound, func() error { return d.Delete(t.Context(), target, false) })
		wantErrorKind(t, "Release of another cluster's server", driver.ErrNotFound, func() error { return d.Delete(t.Context(), target, true) })
		stop := e.stopSpec(spec)
		stop.Target = target
		// An engine may refuse a second server with the same UID, or create one.
		s, err := d.Ensure(t.Context(), stop)
		assert.True(t, err != nil || s.ID != theirs.ID, "Ensure returned another cluster's %s", describeServers(s))
	}
	for _, u := range usageOf(t, d, spec.UID) {
		t.Errorf("Usage reports another cluster's server: %+v", u)
	}
	wantSameRun(t, listOne(t, e.driver, spec.UID), theirs)
}
