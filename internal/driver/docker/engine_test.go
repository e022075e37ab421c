// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

func TestNew(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string // in the error, or no error
	}{
		"engine that is not there": {map[string]string{"DOCKER_HOST": "unix:///nowhere/docker.sock"}, ""},
		"ssh":                      {map[string]string{"DOCKER_HOST": "ssh://user@host"}, "ssh is not supported"},
		"nonsense":                 {map[string]string{"DOCKER_HOST": "nonsense"}, "DOCKER_HOST"},
		"no certificates":          {map[string]string{"DOCKER_HOST": "tcp://127.0.0.1:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"}, "DOCKER_CERT_PATH"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			d, err := New(Options{ClusterID: "c"})
			if c.want != "" {
				assert.ErrorSays(t, "New", err, c.want)
				return
			}
			assert.NoError(t, err)
			wantError(t, assert.ErrorOf(d.List(t.Context())), driver.ErrUnavailable, "", c.env["DOCKER_HOST"])
			wantError(t, assert.ErrorOf(d.EngineID(t.Context())), driver.ErrUnavailable, "", c.env["DOCKER_HOST"])
		})
	}
}

func TestTooOldEngine(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"1.40": "Drover needs 1.41", "1.30": "minimum supported API version"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Api-Version", version)
			}))
			t.Cleanup(engine.Close)
			d := newDriver(t, Options{Host: strings.Replace(engine.URL, "http", "tcp", 1)})
			wantError(t, assert.ErrorOf(d.List(t.Context())), driver.ErrUnavailable, "", want)
		})
	}
}

// TestUpgradedEngine simulates an engine that was upgraded and does not support the
// negotiated API version any more.
func TestUpgradedEngine(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	mustList(t, d)
	p.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if p.countRequests("HEAD", "/_ping") > 1 || !strings.HasSuffix(r.URL.Path, "/containers/json") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"message":"client version 1.41 is too old. Minimum supported API version is 1.44"}`)
		return true
	})
	wantError(t, assert.ErrorOf(d.List(t.Context())), driver.ErrUnavailable, "", "too old")
	mustList(t, d) // by a client that has negotiated again
}

// TestPauseOnBusyHost checks that a pause for which the engine was too slow is tried again.
func TestPauseOnBusyHost(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	spec := newSpec(t, d, guestImages(t).plain)
	ensureState(t, d, spec, driver.StateRunning)
	p.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/pause") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprint(w, `{"message":"Cannot pause container 1: OCI runtime pause failed: unable to freeze: unknown"}`)
		return true
	})
	spec.Power = driver.PowerPaused
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrRetry, "", "unable to freeze")
	p.intercept(nil)
	ensureState(t, d, spec, driver.StatePaused)
}

// hangRequest does not answer until the caller gives up.
func hangRequest(r *http.Request) bool {
	<-r.Context().Done()
	return true
}

func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at     string
		within time.Duration // long enough for the requests before
		call   func(ctx context.Context, d *Driver, spec driver.ServerSpec) error
		// kind is nil if the engine may have done it nevertheless.
		kind error
	}{
		"list": {"/containers/json", 500 * time.Millisecond, func(ctx context.Context, d *Driver, _ driver.ServerSpec) error {
			_, err := d.List(ctx)
			return err
		}, driver.ErrUnavailable},
		"create": {"/containers/create", 5 * time.Second, func(ctx context.Context, d *Driver, spec driver.ServerSpec) error {
			_, err := d.Ensure(ctx, spec)
			return err
		}, nil},
		"events": {"/events", 500 * time.Millisecond, func(ctx context.Context, d *Driver, _ driver.ServerSpec) error {
			_, err := d.Watch(ctx)
			return err
		}, driver.ErrUnavailable},
		"properties": {"/info", 500 * time.Millisecond, func(ctx context.Context, d *Driver, _ driver.ServerSpec) error {
			_, err := d.EngineID(ctx)
			return err
		}, driver.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t)
			d := newDriver(t, Options{Host: p.host(), CallTimeout: c.within})
			spec := newSpec(t, d, guestImages(t).plain)
			p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, c.at) && hangRequest(r)
			})
			began := time.Now()
			err := c.call(t.Context(), d, spec)
			took := time.Since(began)
			assert.True(t, took < kit.DefaultCallTimeout, "it took %v", took)
			if c.kind != nil {
				wantError(t, err, c.kind, "", "did not answer in time")
			} else if !driver.Ambiguous(err) || errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("got error %v, want an ambiguous one", err)
			}
		})
	}
}

// TestStuckContainer checks that a container that the engine lists but cannot inspect
// hides neither itself nor the others, and can be deleted.
func TestStuckContainer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"no answer": func(_ http.ResponseWriter, r *http.Request) bool { return hangRequest(r) },
		"an error": func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, `{"message":"layer does not exist"}`, http.StatusInternalServerError)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no answer" {
				tier.Full(t, "it waits for the limit of a call; the gate keeps an engine that answers with an error, and TestUsageOfMany one that hangs")
			}
			t.Parallel()
			testStuckContainer(t, answer)
		})
	}
}

func testStuckContainer(t *testing.T, answer func(http.ResponseWriter, *http.Request) bool) {
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	good, bad := newSpec(t, d, guestImages(t).plain), newSpec(t, d, guestImages(t).plain)
	ensureState(t, d, good, driver.StateRunning)
	stuck := ensureState(t, d, bad, driver.StateRunning)
	p.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		return strings.Contains(r.URL.Path, stuck.ID+"/json") && answer(w, r)
	})
	all := mustList(t, d)
	assert.Require(t, len(all) == 2, "List shows %+v, want both", all)
	for _, s := range all {
		isStuck := s.UID == bad.UID
		assert.True(t, s.State == driver.StateRunning && (s.Err != nil) == isStuck, "List shows %+v, want it running and an error only for %s", s, bad.UID)
	}
	assert.NoError(t, d.Delete(t.Context(), bad.Target, false))
}

// TestListInspectsChanges checks that with an event stream open, a list inspects only what
// changed, and that without one it inspects everything.
func TestListInspectsChanges(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	specs := []driver.ServerSpec{newSpec(t, d, guestImages(t).plain), newSpec(t, d, guestImages(t).plain), newSpec(t, d, guestImages(t).plain)}
	for _, spec := range specs {
		ensureState(t, d, spec, driver.StateRunning)
	}
	inspects := func() int {
		p.resetRequests()
		all := mustList(t, d)
		assert.Require(t, len(all) == len(specs), "List shows %+v", all)
		if n := p.countRequests("GET", "/containers/json"); n != 1 {
			t.Errorf("a list took %d list calls, want 1", n)
		}
		n := p.countRequests("GET", "/json")
		return n - 1
	}
	for range 2 {
		n := inspects()
		assert.True(t, n == len(specs), "without a Watch a list took %d inspections, want %d", n, len(specs))
	}

	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	// Events of the starts may still come.
	assert.Eventually(t, "a list with a Watch to inspect no unchanged server", func(testing.TB) error {
		if n := inspects(); n > 0 {
			return fmt.Errorf("it took %d inspections", n)
		}
		return nil
	})
	drainEvents(events)
	s := mustList(t, d, specs[0].UID)[0]
	assert.NoError(t, assert.ErrorOf(guestImages(t).client.ContainerRestart(t.Context(), s.ID, client.ContainerRestartOptions{})))
	awaitEvent(t, events, specs[0].UID)
	drainEvents(events)
	n := inspects()
	assert.True(t, n == 1, "after one change a list took %d inspections, want 1", n)
	for _, now := range mustList(t, d) {
		assert.True(t, now.UID != s.UID || (now.Run != s.Run && now.State == driver.StateRunning),
			"after a restart by hand List shows %+v, want another run than %s", now, s.Run)
	}

	p.disconnect()
	drivertest.WaitForClose(t, events, "the engine was lost")
	p.reconnect()
	n = inspects()
	assert.True(t, n == len(specs), "after an outage a list took %d inspections, want %d", n, len(specs))
}

func TestUsageOfMany(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	var uids []types.UID
	for range 3 {
		spec := newSpec(t, d, guestImages(t).plain)
		ensureState(t, d, spec, driver.StateRunning)
		uids = append(uids, spec.UID)
	}
	stuck := mustList(t, d, uids[0])[0].ID
	p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		return strings.Contains(r.URL.Path, stuck+"/stats") && hangRequest(r)
	})
	p.resetRequests()
	samples, err := d.Usage(t.Context(), uids...)
	assert.NoError(t, err)
	assert.True(t, len(samples) == len(uids)-1, "got %d samples, want one of each but the one that is stuck: %+v", len(samples), samples)
	n := p.countRequests("GET", "/containers/json")
	assert.True(t, n == 1, "it took %d lists, want 1", n)
}

// TestStopSignal checks that an image can require another signal than SIGTERM.
func TestStopSignal(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	spec := newSpec(t, d, guestImages(t).plain)
	createContainer(t, "", &container.Config{Image: spec.Image.Source, StopSignal: "SIGUSR1", Labels: containerLabels(spec, d.Options.ClusterID, spec.Image.Source)})
	ensureState(t, d, spec, driver.StateRunning)
	var signals []string
	p.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/kill") {
			signals = append(signals, r.URL.Query().Get("signal"))
		}
		return false
	})
	spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	off := ensureState(t, d, spec, driver.StateStopped)
	assert.True(t, off.Exit != nil && off.Exit.Code == 0 && len(signals) == 1 && signals[0] == "SIGUSR1",
		"it ended with %+v after the signals %v, want 0 after SIGUSR1", off.Exit, signals)
}

// TestTLS connects to the engine with the variables that every Docker client reads.
func TestTLS(t *testing.T) {
	engine := httptest.NewUnstartedServer(newProxy(t))
	engine.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	engine.StartTLS()
	t.Cleanup(engine.Close)
	certs := t.TempDir()
	pair := engine.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	assert.NoError(t, err)
	writePEM(t, filepath.Join(certs, "ca.pem"), "CERTIFICATE", pair.Certificate[0])
	writePEM(t, filepath.Join(certs, "cert.pem"), "CERTIFICATE", pair.Certificate[0])
	writePEM(t, filepath.Join(certs, "key.pem"), "PRIVATE KEY", key)

	t.Setenv("DOCKER_HOST", strings.Replace(engine.URL, "https", "tcp", 1))
	plain := newDriver(t, Options{})
	wantError(t, assert.ErrorOf(plain.List(t.Context())), driver.ErrUnavailable, "", "HTTPS")

	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", certs)
	d, spec := newServer(t, shellImage(t))
	ensureState(t, d, spec, driver.StateRunning)
	var out bytes.Buffer
	code, err := d.Exec(t.Context(), spec.UID, terminal.Command{Args: []string{"cat"}, Stdin: strings.NewReader("typed"), Stdout: &out})
	assert.True(t, err == nil && code == 0 && out.String() == "typed", "a command ended with %d, %v, and printed %q", code, err, out.String())
}

func writePEM(t *testing.T, path, kind string, content []byte) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
}

// TestCallsPerLife counts the engine's requests for a creation and a deletion: each
// driver call as the controller makes it, once the connection is open and the host's
// size is known.
func TestCallsPerLife(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	d := newDriver(t, Options{Host: p.host()})
	uncounted := newDriver(t, Options{ClusterID: d.Options.ClusterID})
	assert.NoError(t, assert.ErrorOf(d.EngineID(t.Context())))
	spec := newSpec(t, d, guestImages(t).plain)
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"list before the creation", func() { mustList(t, d, spec.UID) }, []string{"GET /containers/json"}},
		{"confirmation of the engine", func() { mustEngineID(t, d) }, []string{"GET /networks/none"}},
		{"creation", func() { awaitGuest(t.Context(), uncounted, mustEnsure(t, d, spec)) }, []string{
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
			"GET /containers/json", "DELETE /containers/ID", "GET /volumes",
		}},
		{"list after the removal", func() { mustList(t, d, spec.UID) }, []string{"GET /containers/json"}},
	} {
		p.resetRequests()
		step.do()
		have := p.requestTexts()
		assert.True(t, step.want == nil || slices.Equal(have, step.want), "%s: the requests are\n  %q, want\n  %q", step.what, have, step.want)
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
	assert.Equal(t, "another engine has the id", mustEngineID(t, d), "other")
	other.Store(map[string]any{})
	assert.Equal(t, "the first engine is back with the id", mustEngineID(t, d), first)
	for _, code := range []int{http.StatusNotFound, http.StatusForbidden} {
		for _, id := range []string{"a", "b"} {
			other.Store(map[string]any{"none": code, "info": map[string]any{"ID": id}})
			assert.Equal(t, fmt.Sprintf("an engine that answers %d about its network has the id", code), mustEngineID(t, d), id)
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
		awaitGuest(t.Context(), d, ensureState(t, d, spec, driver.StateRunning))
	}
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	stopped.Power, stopped.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	mustEnsure(t, d, stopped)
	paused.Power = driver.PowerPaused
	mustEnsure(t, d, paused)
	uid := <-events
	assert.True(t, uid == paused.UID, "the first event is of %s, want it of %s, which was paused", uid, paused.UID)
}
