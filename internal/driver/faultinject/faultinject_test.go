// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package faultinject_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/driver/faultinject"
	"cloudnative.tw/drover/test/assert"
)

// fixture is a fake engine behind a faults file.
type fixture struct {
	memory *fake.Memory
	path   string
	d      driver.Driver

	mu   sync.Mutex
	logs []string
}

func newFixture(t *testing.T, content string) *fixture {
	t.Helper()
	r := &fixture{memory: fake.NewMemory(clock.RealClock{}), path: filepath.Join(t.TempDir(), "faults.yaml")}
	log := funcr.New(func(_, args string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.logs = append(r.logs, args)
	}, funcr.Options{})
	bare := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Memory: r.memory})
	r.d = faultinject.Wrap(bare, r.path, clock.RealClock{}, log)
	if content != "" {
		r.writeFaults(t, content)
	}
	return r
}

func (r *fixture) writeFaults(t *testing.T, content string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(r.path+".new", []byte(content), 0o600))
	assert.NoError(t, os.Rename(r.path+".new", r.path))
}

func (r *fixture) logText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.logs, "\n")
}

func (r *fixture) ensureServer(t *testing.T, vm string) error {
	t.Helper()
	return assert.ErrorOf(r.d.Ensure(t.Context(), specOf(vm)))
}

func specOf(vm string) driver.ServerSpec {
	s := faketest.NewSpec(nil)
	s.Namespace, s.Name, _ = strings.Cut(vm, "/")
	s.UID, s.Power = uidOf(vm), driver.PowerOn
	return s
}

func uidOf(vm string) types.UID { return types.UID(strings.ReplaceAll(vm, "/", "_")) }

func shortContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestFailCreate(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `
default/a: {failCreate: 2, message: "no luck today", kind: exhausted}
b: {failCreate: 1}
`)
	for range 2 {
		err := r.ensureServer(t, "default/a")
		assert.ErrorIs(t, "Ensure", err, driver.ErrExhausted)
		assert.True(t, err != nil && err.Error() == "no luck today", "got error %v, want the file's message", err)
	}
	for _, vm := range []string{"default/a", "default/a", "other/a"} {
		assert.ErrorIs(t, "Ensure of "+vm, r.ensureServer(t, vm), nil)
	}
	for _, ns := range []string{"x", "y"} {
		assert.ErrorIs(t, "first Ensure in "+ns, r.ensureServer(t, ns+"/b"), driver.ErrRetry)
		assert.ErrorIs(t, "second Ensure in "+ns, r.ensureServer(t, ns+"/b"), nil)
	}
	// A change of another entry does not reset the count; a changed entry does, but
	// an existing server is not created.
	r.writeFaults(t, "b: {failCreate: 1}\nz: {failCreate: 1}\n")
	r.memory.Remove(uidOf("x/b"))
	assert.ErrorIs(t, "Ensure, entry unchanged", r.ensureServer(t, "x/b"), nil)
	r.writeFaults(t, "b: {failCreate: 2}")
	assert.ErrorIs(t, "Ensure of an existing server", r.ensureServer(t, "x/b"), nil)
	r.memory.Remove(uidOf("x/b"))
	assert.ErrorIs(t, "Ensure, entry changed", r.ensureServer(t, "x/b"), driver.ErrRetry)
	n := len(r.memory.Records())
	assert.True(t, n == 3, "the engine has %d servers, want 3", n)
}

func TestKinds(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]error{
		"retry": driver.ErrRetry, "invalid": driver.ErrInvalid, "unsupported": driver.ErrUnsupported,
		"exhausted": driver.ErrExhausted, "unavailable": driver.ErrUnavailable,
	} {
		r := newFixture(t, "a: {failCreate: 1, kind: "+kind+"}")
		assert.ErrorIs(t, kind, r.ensureServer(t, "x/a"), want)
	}
	err := newFixture(t, "a: {failCreate: 1, kind: other}").ensureServer(t, "x/a")
	assert.True(t, err != nil && driver.Ambiguous(err) && !errors.Is(err, driver.ErrUnavailable), "other: got %v, want an error that no sentinel explains", err)
}

func TestHang(t *testing.T) {
	t.Parallel()
	r := newFixture(t, "")
	assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), nil)
	r.writeFaults(t, `a: {hang: true}`)
	assert.ErrorIs(t, "Ensure", assert.ErrorOf(r.d.Ensure(shortContext(t), specOf("x/a"))), context.DeadlineExceeded)
	assert.ErrorIs(t, "Delete", r.d.Delete(shortContext(t), specOf("x/a").Target, false), context.DeadlineExceeded)
	n := len(r.memory.Records())
	assert.True(t, n == 1, "the engine has %d servers, want the one", n)
	assert.ErrorIs(t, "List", assert.ErrorOf(r.d.List(t.Context())), nil)
	assert.ErrorIs(t, "Ensure of another", r.ensureServer(t, "x/b"), nil)
	r.writeFaults(t, `"*": {hang: true}`)
	assert.ErrorIs(t, "List", assert.ErrorOf(r.d.List(shortContext(t))), context.DeadlineExceeded)
	assert.ErrorIs(t, "Usage", assert.ErrorOf(r.d.Usage(shortContext(t), "x_a")), context.DeadlineExceeded)
}

func TestSucceedThenTimeout(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `x/a: {succeedThenTimeout: true}`)
	err := r.ensureServer(t, "x/a")
	assert.ErrorIs(t, "Ensure", err, context.DeadlineExceeded)
	assert.True(t, driver.Ambiguous(err) && len(r.memory.Records()) == 1,
		"got error %v and %d servers, want an ambiguous one and the server", err, len(r.memory.Records()))
	err = r.d.Delete(t.Context(), specOf("x/a").Target, false)
	assert.ErrorIs(t, "Delete", err, context.DeadlineExceeded)
	assert.True(t, len(r.memory.Records()) == 0, "the server is still there")
	assert.ErrorIs(t, "Delete again", r.d.Delete(t.Context(), specOf("x/a").Target, false), driver.ErrNotFound)
}

// TestDeleteOfListedServer checks that a controller that has just started knows the
// names of VMs from their servers.
func TestDeleteOfListedServer(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `x/a: {succeedThenTimeout: true}`)
	bare, _ := driver.As[*fake.Driver](r.d)
	assert.ErrorIs(t, "Ensure of the bare driver", assert.ErrorOf(bare.Ensure(t.Context(), specOf("x/a"))), nil)
	assert.ErrorIs(t, "List", assert.ErrorOf(r.d.List(t.Context())), nil)
	assert.ErrorIs(t, "Delete", r.d.Delete(t.Context(), specOf("x/a").Target, false), context.DeadlineExceeded)
}

func TestLatency(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `a: {latency: 80ms}`)
	began := time.Now()
	assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), nil)
	took := time.Since(began)
	assert.True(t, took >= 80*time.Millisecond, "Ensure took %v, want 80ms at least", took)
	r.writeFaults(t, `a: {latency: 1h}`)
	assert.ErrorIs(t, "Ensure", assert.ErrorOf(r.d.Ensure(shortContext(t), specOf("x/a"))), context.DeadlineExceeded)
}

func TestEngineUnavailable(t *testing.T) {
	t.Parallel()
	r := newFixture(t, "")
	assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), nil)
	events, err := r.d.Watch(t.Context())
	assert.NoError(t, err)
	r.writeFaults(t, `"*": {engineUnavailable: true}`)
	drivertest.WaitForClose(t, events, "the engine became unavailable")
	identifier, _ := driver.As[driver.Identifier](r.d)
	for call, err := range map[string]error{
		"Ensure":   r.ensureServer(t, "x/a"),
		"Delete":   r.d.Delete(t.Context(), specOf("x/a").Target, false),
		"List":     assert.ErrorOf(r.d.List(t.Context())),
		"Usage":    assert.ErrorOf(r.d.Usage(t.Context(), "x_a")),
		"Watch":    assert.ErrorOf(r.d.Watch(t.Context())),
		"EngineID": assert.ErrorOf(identifier.EngineID(t.Context())),
	} {
		assert.ErrorIs(t, call, err, driver.ErrUnavailable)
	}
	assert.NoError(t, os.Remove(r.path))
	servers, err := r.d.List(t.Context())
	assert.True(t, err == nil && len(servers) == 1, "after the outage: got %+v, %v, want the server", servers, err)
}

// TestInvalidFile checks that the log reports the error and the allowed values once, and
// that the last valid content remains in force.
func TestInvalidFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content string
		want    []string
	}{
		"unknown field":      {"a: {failcreates: 1}", []string{"failcreates", "failCreate, kind"}},
		"wrong type":         {"a: {failCreate: lots}", []string{"failCreate"}},
		"no YAML":            {"a: [", []string{"yaml"}},
		"negative":           {"a: {failCreate: -1}", []string{"a: failCreate is -1"}},
		"negative latency":   {"a: {latency: -1s}", []string{"a: latency is -1s"}},
		"bad latency":        {"a: {latency: soon}", []string{"soon"}},
		"kind":               {"a: {kind: sad}", []string{`kind is \"sad\"`, "exhausted, invalid"}},
		"engine of one VM":   {"a: {engineUnavailable: true}", []string{"engineUnavailable", "under", "only"}},
		"pattern":            {`"a*": {hang: true}`, []string{`a*`, "namespace/name"}},
		"too many slashes":   {"a/b/c: {hang: true}", []string{"a/b/c", "namespace/name"}},
		"the same one twice": {"a: {hang: true}\na: {hang: false}", []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFixture(t, "a: {failCreate: 1000}")
			assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), driver.ErrRetry)
			r.writeFaults(t, c.content)
			for range 3 {
				assert.ErrorIs(t, "Ensure with a mistake in the file", r.ensureServer(t, "x/a"), driver.ErrRetry)
			}
			for _, want := range append(c.want, r.path) {
				assert.Contains(t, fmt.Sprintf("the log does not contain %q:\n", want), r.logText(), want)
			}
			n := strings.Count(r.logText(), "mistake")
			assert.True(t, n == 1, "the mistake was logged %d times, want once", n)
			r.writeFaults(t, "{}")
			assert.ErrorIs(t, "Ensure with the file repaired", r.ensureServer(t, "x/a"), nil)
		})
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `{"x/a": {"failCreate": 1}, "*": {"latency": "1ms"}}`)
	assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), driver.ErrRetry)
	assert.ErrorIs(t, "Ensure", r.ensureServer(t, "x/a"), nil)
}

// TestTransparent checks that without a file, or with one about other VMs, the driver is
// unaffected.
func TestTransparent(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"no file": "", "about others": "other-vm: {hang: true, failCreate: 3}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "faults.yaml")
			if content != "" {
				assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			}
			h := faketest.InMemory(func(o fake.Options) fake.Options { return o })
			drivertest.Run(t, h.Decorated(func(d driver.Driver) driver.Driver {
				return faultinject.Wrap(d, path, clock.RealClock{}, logr.Discard())
			}))
		})
	}
}

// TestManyCallers is for the race detector.
func TestManyCallers(t *testing.T) {
	t.Parallel()
	r := newFixture(t, `"*": {failCreate: 1}`)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 20 {
				vm := fmt.Sprintf("ns/vm-%d", j)
				_ = r.ensureServer(t, vm)
				if i == 0 {
					r.writeFaults(t, fmt.Sprintf(`"*": {failCreate: %d}`, j%3))
				}
				_, _ = r.d.List(t.Context())
				_ = r.d.Delete(t.Context(), driver.Target{UID: uidOf(vm)}, false)
			}
		})
	}
	all.Wait()
}
