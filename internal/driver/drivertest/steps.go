// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

var errUnderWay = errors.New("none: removal is under way")

const pollEvery = 20 * time.Millisecond

// until repeats try until it returns no error, and fails with the last error when
// Patience has passed.
func (e *env) until(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := e.in(e.Patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if e.clock.Now().After(deadline) {
			t.Fatalf("waited %v for %s: %v", e.Patience, what, err)
		}
		e.clock.Sleep(pollEvery)
	}
}

// must fails the test if err is not nil.
func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %q, want the kind %q", what, fmt.Sprint(err), kind)
	}
}

// reach repeats Ensure, as the controller does, until the server is in the
// wanted state.
func (e *env) reach(t *testing.T, spec driver.ServerSpec, want driver.State) driver.Server {
	t.Helper()
	return e.reachVia(t, e.d, spec, string(want), func(s driver.Server) bool { return s.State == want })
}

// reachRunOtherThan is reach for a run other than old.
func (e *env) reachRunOtherThan(t *testing.T, spec driver.ServerSpec, old string) driver.Server {
	t.Helper()
	return e.reachVia(t, e.d, spec, "a new run", func(s driver.Server) bool {
		return s.State == driver.StateRunning && s.Run != old
	})
}

func (e *env) reachVia(t *testing.T, d driver.Driver, spec driver.ServerSpec, what string, ok func(driver.Server) bool) driver.Server {
	t.Helper()
	var s driver.Server
	e.until(t, "Ensure to reach "+what, func() error {
		var err error
		s, err = d.Ensure(t.Context(), spec)
		switch {
		case errors.Is(err, driver.ErrRetry):
			return err
		case err != nil:
			t.Fatalf("Ensure: %v", err)
		case s.Err != nil:
			t.Fatalf("Ensure returned a server with the error %v", s.Err)
		case !ok(s):
			return fmt.Errorf("the server is %s", describe(s))
		}
		return nil
	})
	return s
}

// off returns spec with a stop that is not forced within the test.
func (e *env) off(spec driver.ServerSpec) driver.ServerSpec {
	spec.Power = driver.PowerOff
	spec.StopBy = e.in(time.Hour)
	return spec
}

func withPower(spec driver.ServerSpec, p driver.Power) driver.ServerSpec {
	spec.Power = p
	return spec
}

// restart returns spec with a restart that ends the given run.
func (e *env) restart(spec driver.ServerSpec, run string, stopBy time.Time) driver.ServerSpec {
	spec.RestartRun = run
	spec.StopBy = stopBy
	return spec
}

// one returns the only server of a UID.
func one(t *testing.T, d driver.Driver, uid types.UID) driver.Server {
	t.Helper()
	servers := list(t, d, uid)
	if len(servers) != 1 {
		t.Fatalf("List(%s): got %d servers, want 1: %s", uid, len(servers), describe(servers...))
	}
	return servers[0]
}

func list(t *testing.T, d driver.Driver, uids ...types.UID) []driver.Server {
	t.Helper()
	servers, err := d.List(t.Context(), uids...)
	must(t, "List", err)
	return servers
}

// seen waits until List returns the server in the expected condition.
func (e *env) seen(t *testing.T, uid types.UID, what string, ok func(driver.Server) bool) driver.Server {
	t.Helper()
	var last driver.Server
	e.until(t, "List to show "+what, func() error {
		servers, err := e.d.List(t.Context(), uid)
		must(t, "List", err)
		if len(servers) != 1 || !ok(servers[0]) {
			return fmt.Errorf("it shows %s", describe(servers...))
		}
		last = servers[0]
		return nil
	})
	return last
}

// gone repeats Delete until nothing is left of a server.
func (e *env) gone(t *testing.T, d driver.Driver, uid types.UID) {
	t.Helper()
	e.until(t, "Delete to say that nothing is left", func() error {
		err := d.Delete(t.Context(), driver.Target{UID: uid}, false)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		if err != nil && !errors.Is(err, driver.ErrRetry) {
			t.Fatalf("Delete: %v", err)
		}
		return fmt.Errorf("got error %w", cmp.Or(err, errUnderWay))
	})
	if left := list(t, d, uid); len(left) != 0 {
		t.Fatalf("Delete says that nothing is left, List shows %s", describe(left...))
	}
}

// sameRun checks that a server has not changed.
func sameRun(t *testing.T, got, want driver.Server) {
	t.Helper()
	if got.ID != want.ID || got.Run != want.Run || got.State != want.State {
		t.Errorf("got the server %s, want it unchanged: %s", describe(got), describe(want))
	}
}

func describe(servers ...driver.Server) string {
	if len(servers) == 0 {
		return "no server"
	}
	var text strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&text, "[%s/%s %s id=%s run=%s retained=%v exit=%+v doing=%q err=%v]",
			s.Namespace, s.Name, s.State, s.ID, s.Run, s.Retained, s.Exit, s.Progress, s.Err)
	}
	return text.String()
}
