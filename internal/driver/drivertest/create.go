// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

func testEngineID(t *testing.T, e *env) {
	ids := map[string]bool{}
	for _, d := range []driver.Driver{e.d, e.d, e.open(t, string(newUID()))} {
		identifier, ok := driver.As[driver.Identifier](d)
		if !ok {
			t.Fatal("the driver is no driver.Identifier")
		}
		id, err := identifier.EngineID(t.Context())
		must(t, "EngineID", err)
		ids[id] = true
		if !regexp.MustCompile(`^[A-Za-z0-9:._-]{1,128}$`).MatchString(id) {
			t.Errorf("EngineID is %q, want 1 to 128 of [A-Za-z0-9:._-]", id)
		}
	}
	if len(ids) != 1 {
		t.Errorf("one engine has the identities %v, want one that lasts", ids)
	}
}

func testCreateTwice(t *testing.T, e *env) {
	spec := e.spec(t, "twice")
	first := e.reach(t, spec, driver.StateRunning)
	second := e.reach(t, spec, driver.StateRunning)
	sameRun(t, second, first)
	sameRun(t, one(t, e.d, spec.UID), first)
	checkNew(t, spec, first)
}

func checkNew(t *testing.T, spec driver.ServerSpec, s driver.Server) {
	t.Helper()
	if s.UID != spec.UID || s.Namespace != spec.Namespace || s.Name != spec.Name {
		t.Errorf("got %s/%s of UID %s, want %s/%s of UID %s", s.Namespace, s.Name, s.UID, spec.Namespace, spec.Name, spec.UID)
	}
	if s.ID == "" || s.Run == "" || s.StartedAt.IsZero() {
		t.Errorf("a server that runs has ID %q, Run %q, StartedAt %v, want none of them empty", s.ID, s.Run, s.StartedAt)
	}
	if s.Exit != nil || s.Retained || len(s.Pending) != 0 {
		t.Errorf("a new server has Exit %v, Retained %v, Pending %v, want none of them set", s.Exit, s.Retained, s.Pending)
	}
	if s.Applied.CPUMilli != spec.CPUMilli || s.Applied.MemoryBytes != spec.MemoryBytes {
		t.Errorf("the server has %+v, want cpu %dm and memory %d", s.Applied, spec.CPUMilli, spec.MemoryBytes)
	}
}

// testCreateFromTwoCallers simulates two leaders that both act.
func testCreateFromTwoCallers(t *testing.T, e *env) {
	spec := e.spec(t, "two-callers")
	other := e.open(t, e.cluster)
	ids := newSet()
	inParallel(8, func(i int) {
		d := e.d
		if i%2 == 1 {
			d = other
		}
		s, err := d.Ensure(t.Context(), spec)
		if err != nil && final(err) {
			t.Errorf("Ensure: got the final error %v, want none or one that is retried", err)
		}
		ids.add(s.ID)
	})
	s := e.reach(t, spec, driver.StateRunning)
	ids.add(s.ID)
	if all := ids.list(); len(all) != 1 {
		t.Errorf("the callers got the servers %v, want one and the same", all)
	}
	sameRun(t, one(t, other, spec.UID), s)
	sameRun(t, one(t, e.d, spec.UID), s)
}

func final(err error) bool {
	return errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrUnsupported)
}

func testCreateStopped(t *testing.T, e *env) {
	spec := e.spec(t, "born-stopped")
	s := e.reach(t, e.off(spec), driver.StateStopped)
	if s.ID == "" || s.Exit != nil {
		t.Errorf("a server that never ran has ID %q and Exit %+v, want an ID and no Exit", s.ID, s.Exit)
	}
	up := e.reach(t, spec, driver.StateRunning)
	if up.ID != s.ID {
		t.Errorf("starting it gave the server %q, want the same one, %q", up.ID, s.ID)
	}
}

func testCreatePaused(t *testing.T, e *env) {
	spec := e.spec(t, "born-paused")
	s := e.reach(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	up := e.reach(t, spec, driver.StateRunning)
	if up.ID != s.ID || up.Run != s.Run {
		t.Errorf("resuming changed the server from %s to %s", describe(s), describe(up))
	}
}

// testAdoptAfterCrash simulates a controller that was killed and started again.
func testAdoptAfterCrash(t *testing.T, e *env) {
	spec := e.spec(t, "adopted")
	before := e.reach(t, spec, driver.StateRunning)
	next := e.open(t, e.cluster)
	sameRun(t, one(t, next, spec.UID), before)
	after, err := next.Ensure(t.Context(), spec)
	must(t, "Ensure after a crash", err)
	sameRun(t, after, before)
	if n := len(list(t, next)); n != 1 {
		t.Errorf("there are %d servers after the adoption, want 1", n)
	}
}

// testWrongID checks that a Target's ID, if set, must be the server's.
func testWrongID(t *testing.T, e *env) {
	spec := e.spec(t, "wrong-id")
	s := e.reach(t, spec, driver.StateRunning)
	wrong := driver.Target{UID: spec.UID, ID: s.ID + "0"}
	stop := e.off(spec)
	stop.Target = wrong
	_, err := e.d.Ensure(t.Context(), stop)
	wantKind(t, "Ensure with another server's ID", err, driver.ErrNotFound)
	for _, retain := range []bool{false, true} {
		wantKind(t, "Delete with another server's ID", e.d.Delete(t.Context(), wrong, retain), driver.ErrNotFound)
	}
	sameRun(t, one(t, e.d, spec.UID), s)
	spec.ID = s.ID
	right, err := e.d.Ensure(t.Context(), spec)
	must(t, "Ensure with the right ID", err)
	sameRun(t, right, s)
}

func testBadUID(t *testing.T, e *env) {
	for _, uid := range []types.UID{"", ".", "..", "../x", "/etc/x", "a/b", "a b", "a\nb", "a\x00b", "-rf", types.UID(strings.Repeat("a", 300))} {
		spec := e.spec(t, "bad-uid")
		spec.UID = uid
		_, err := e.d.Ensure(t.Context(), spec)
		wantKind(t, "Ensure of the UID "+string(uid), err, driver.ErrInvalid)
		err = e.d.Delete(t.Context(), spec.Target, false)
		if !errors.Is(err, driver.ErrInvalid) && !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Delete of the UID %q: got %v, want invalid or not found", uid, err)
		}
	}
	if left := list(t, e.d); len(left) != 0 {
		t.Errorf("bad UIDs left %s", describe(left...))
	}
}

// testOtherCluster checks that another cluster's servers are neither listed nor changed.
func testOtherCluster(t *testing.T, e *env) {
	spec := e.spec(t, "theirs")
	theirs := e.reach(t, spec, driver.StateRunning)
	d := e.open(t, string(newUID()))
	if all := list(t, d); len(all) != 0 {
		t.Errorf("List shows another cluster's %s", describe(all...))
	}
	if named := list(t, d, spec.UID); len(named) != 0 {
		t.Errorf("List by UID shows another cluster's %s", describe(named...))
	}
	for _, target := range []driver.Target{{UID: spec.UID}, {UID: spec.UID, ID: theirs.ID}} {
		wantKind(t, "Delete of another cluster's server", d.Delete(t.Context(), target, false), driver.ErrNotFound)
		wantKind(t, "Release of another cluster's server", d.Delete(t.Context(), target, true), driver.ErrNotFound)
		touch := e.off(spec)
		touch.Target = target
		// Whether a second server of that UID is possible is up to the
		// engine.
		if s, err := d.Ensure(t.Context(), touch); err == nil && s.ID == theirs.ID {
			t.Errorf("Ensure took another cluster's %s", describe(s))
		}
	}
	samples, err := d.Usage(t.Context(), spec.UID)
	must(t, "Usage", err)
	for _, u := range samples {
		t.Errorf("Usage tells of another cluster's server: %+v", u)
	}
	sameRun(t, one(t, e.d, spec.UID), theirs)
}

// inParallel calls f(0) to f(n-1) concurrently and waits for all.
func inParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-gate
			f(i)
		})
	}
	close(gate)
	all.Wait()
}

// set collects texts other than "" from many goroutines.
type set struct {
	mu    sync.Mutex
	texts map[string]bool
}

func newSet() *set { return &set{texts: map[string]bool{}} }

func (s *set) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != "" {
		s.texts[text] = true
	}
}

func (s *set) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for text := range s.texts {
		all = append(all, text)
	}
	return all
}
