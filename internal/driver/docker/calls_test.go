// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestCallsPerLife counts the engine's requests for a creation and a deletion: each
// driver call as the controller makes it, once the connection is open and the host's
// size is known.
func TestCallsPerLife(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	assert.NoError(t, assert.ErrorOf(d.EngineID(t.Context())))
	spec := newSpec(t, d, guestImages(t).plain)
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"list before the creation", func() { mustList(t, d, spec.UID) }, []string{"GET /containers/json"}},
		{"confirmation of the engine", func() { mustEngineID(t, d) }, []string{"GET /networks/none"}},
		{"creation", func() { awaitGuest(t.Context(), mustEnsure(t, d, spec)) }, []string{
			"GET /containers/json", "POST /containers/create", "POST /containers/ID/start", "GET /containers/ID/json",
		}},
		{"confirmation of the engine that created", func() { mustEngineID(t, d) }, []string{"GET /networks/none"}},
		{"list after events", func() { mustList(t, d, spec.UID) }, []string{"GET /containers/json", "GET /containers/ID/json"}},
		{"stop", func() {
			spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
			mustEnsure(t, d, spec)
		}, []string{
			"GET /containers/json", "GET /containers/ID/json", "POST /containers/ID/kill", "GET /containers/ID/json",
		}},
		{"wait for the end", func() { ensureState(t, d, spec, driver.StateStopped) }, nil},
		{"removal", func() { assert.NoError(t, d.Delete(t.Context(), spec.Target, false)) }, []string{
			"GET /containers/json", "DELETE /containers/ID",
		}},
		{"list after the removal", func() { mustList(t, d, spec.UID) }, []string{"GET /containers/json"}},
	} {
		p.resetRequests()
		step.do()
		if have := p.requestTexts(); step.want != nil && !slices.Equal(have, step.want) {
			t.Errorf("%s: the requests are\n  %q, want\n  %q", step.what, have, step.want)
		}
	}
}

var (
	callVersion = regexp.MustCompile(`/v1\.[0-9]+/`)
	callID      = regexp.MustCompile(`/containers/[0-9a-f]{64}`)
)

// requestTexts returns the requests since resetRequests, without the parts that differ each time.
func (p *engineProxy) requestTexts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.requests)
	for n, one := range all {
		all[n] = callID.ReplaceAllString(callVersion.ReplaceAllString(one, "/"), "/containers/ID")
	}
	return all
}

func mustEngineID(t *testing.T, d *Driver) string {
	t.Helper()
	id, err := d.EngineID(t.Context())
	assert.NoError(t, err)
	return id
}

// TestEngineIDOfAnotherEngine checks that each of the two queries that identify an
// engine detects another one, and that the cheap one is relied on only for an engine
// that supports it.
func TestEngineIDOfAnotherEngine(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	first := mustEngineID(t, d)
	if p.resetRequests(); mustEngineID(t, d) != first || p.countRequests("GET", "/info") != 0 {
		t.Errorf("the requests to the same engine for its id are %q, want none of /info", p.requestTexts())
	}

	var other atomic.Value // what another engine answers, by the path's last part
	p.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		answers, _ := other.Load().(map[string]any)
		answer, ok := answers[path.Base(r.URL.Path)]
		if !ok {
			return false
		}
		if code, refused := answer.(int); refused {
			w.WriteHeader(code)
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return true
	})
	other.Store(map[string]any{"none": map[string]string{"Id": strings.Repeat("1", 64)}, "info": map[string]any{"ID": "other"}})
	if id := mustEngineID(t, d); id != "other" {
		t.Errorf("another engine has the id %q, want other", id)
	}
	other.Store(map[string]any{})
	if id := mustEngineID(t, d); id != first {
		t.Errorf("the first engine is back with the id %q, want %q", id, first)
	}
	for _, code := range []int{http.StatusNotFound, http.StatusForbidden} {
		for _, id := range []string{"a", "b"} {
			other.Store(map[string]any{"none": code, "info": map[string]any{"ID": id}})
			if have := mustEngineID(t, d); have != id {
				t.Errorf("an engine that answers %d about its network has the id %q, want %q", code, have, id)
			}
		}
	}
}

// TestIdentityEndsWithTheConnection checks that an engine is identified again after an outage.
func TestIdentityEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	id := mustEngineID(t, d)
	p.disconnect()
	wantError(t, assert.ErrorOf(d.EngineID(t.Context())), driver.ErrUnavailable, "", "")
	p.reconnect()
	p.resetRequests()
	if again := mustEngineID(t, d); again != id || p.countRequests("GET", "/info") != 1 {
		t.Errorf("after an outage the id is %q after the requests %q, want %q and one request of /info", again, p.requestTexts(), id)
	}
}

// TestSignalCausesNoEvent checks that a signal which the guest ignores causes no event, so
// that the next event is about a real change.
func TestSignalCausesNoEvent(t *testing.T) {
	t.Parallel()
	d := newDriver(t, Options{})
	stopped, paused := newSpec(t, d, guestImages(t).stubborn), newSpec(t, d, guestImages(t).plain)
	for _, spec := range []driver.ServerSpec{stopped, paused} {
		awaitGuest(t.Context(), ensureState(t, d, spec, driver.StateRunning))
	}
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	stopped.Power, stopped.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	mustEnsure(t, d, stopped)
	paused.Power = driver.PowerPaused
	mustEnsure(t, d, paused)
	if uid := <-events; uid != paused.UID {
		t.Errorf("the first event is of %s, want it of %s, which was paused", uid, paused.UID)
	}
}
