// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

type (
	doEnsure = func() (driver.Server, error)
	doList   = func() ([]driver.Server, error)

	ensureHook = func(do doEnsure) (driver.Server, error)
	listHook   = func(ctx context.Context, do doList) ([]driver.Server, error)
	deleteHook = func(t driver.Target, do func() error) error
)

// hookedDriver stands between the inventory and the driver and replaces calls where a
// test sets so. do is the call that the driver would have got.
type hookedDriver struct {
	*fake.Driver
	mu             sync.Mutex
	ensure         ensureHook
	delete         deleteHook
	list           listHook
	failing        types.UID // lists that name it fail
	failed         int       // such lists
	usage          func(do func() ([]driver.Usage, error)) ([]driver.Usage, error)
	engineID       func(id string) string
	beforeEngineID func(ctx context.Context) error
	releaseEnded   func(ctx context.Context, gone []types.UID) error
	lists          int
	usages         int
}

func (m *hookedDriver) ReleaseEnded(ctx context.Context, gone ...types.UID) error {
	if instead := readLocked(m, &m.releaseEnded); instead != nil {
		return instead(ctx, gone)
	}
	return nil
}

// withLock changes what the hookedDriver does, which may be in use at that moment.
func (m *hookedDriver) withLock(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *hookedDriver) onEnsure(instead ensureHook) { m.withLock(func() { m.ensure = instead }) }

func (m *hookedDriver) onDelete(instead deleteHook) { m.withLock(func() { m.delete = instead }) }

func (m *hookedDriver) onList(instead listHook) { m.withLock(func() { m.list = instead }) }

func (m *hookedDriver) failEnsure(err error) {
	m.onEnsure(func(doEnsure) (driver.Server, error) { return driver.Server{}, err })
}

func (m *hookedDriver) failList(err error) {
	m.onList(func(context.Context, doList) ([]driver.Server, error) { return nil, err })
}

// editList changes every server of every list.
func (m *hookedDriver) editList(change func(*driver.Server)) {
	m.onList(func(_ context.Context, do doList) ([]driver.Server, error) {
		servers, err := do()
		for n := range servers {
			change(&servers[n])
		}
		return servers, err
	})
}

// countLists returns how often the engine was listed.
func (m *hookedDriver) countLists() int { return readLocked(m, &m.lists) }

func readLocked[T any](m *hookedDriver, field *T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *field
}

func (m *hookedDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	do := func() (driver.Server, error) { return m.Driver.Ensure(ctx, spec) }
	if instead := readLocked(m, &m.ensure); instead != nil {
		return instead(do)
	}
	return do()
}

func (m *hookedDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	do := func() error { return m.Driver.Delete(ctx, t, retain) }
	if instead := readLocked(m, &m.delete); instead != nil {
		return instead(t, do)
	}
	return do()
}

func (m *hookedDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	m.withLock(func() { m.lists++ })
	if slices.Contains(uids, readLocked(m, &m.failing)) {
		m.withLock(func() { m.failed++ })
		return nil, errors.New("the API answers 500")
	}
	do := func() ([]driver.Server, error) { return m.Driver.List(ctx, uids...) }
	if instead := readLocked(m, &m.list); instead != nil {
		return instead(ctx, do)
	}
	return do()
}

func (m *hookedDriver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	m.withLock(func() { m.usages++ })
	do := func() ([]driver.Usage, error) { return m.Driver.Usage(ctx, uids...) }
	if instead := readLocked(m, &m.usage); instead != nil {
		return instead(do)
	}
	return do()
}

func (m *hookedDriver) EngineID(ctx context.Context) (string, error) {
	if fail := readLocked(m, &m.beforeEngineID); fail != nil {
		if err := fail(ctx); err != nil {
			return "", err
		}
	}
	id, err := m.Driver.EngineID(ctx)
	if instead := readLocked(m, &m.engineID); instead != nil && err == nil {
		id = instead(id)
	}
	return id, err
}

// fixture is an inventory of an in-memory engine, with a fake clock.
type fixture struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	memory *fake.Memory
	engine *hookedDriver
	inv    *Inventory

	mu      sync.Mutex
	changes []Change
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	g := &fixture{t: t, clock: testingclock.NewFakeClock(t0)}
	g.memory = fake.NewMemory(g.clock)
	d, err := fake.New(fake.Options{ClusterID: "cluster", Memory: g.memory, Clock: g.clock, Log: logr.Discard()})
	assert.NoError(t, err)
	g.engine = &hookedDriver{Driver: d}
	g.inv, err = New(Options{Name: "fake", Driver: g.engine, Clock: g.clock, Log: logr.Discard()})
	assert.NoError(t, err)
	g.inv.Subscribe(func(c Change) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changes = append(g.changes, c)
	})
	return g
}

// startLoop runs the inventory until the test ends.
func (g *fixture) startLoop() *fixture {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.inv.Start(ctx) }()
	g.t.Cleanup(func() { cancel(); <-done })
	return g
}

// newListedFixture returns a fixture whose inventory knows the engine.
func newListedFixture(t *testing.T) *fixture {
	t.Helper()
	g := newFixture(t).startLoop()
	g.waitUntilListed()
	return g
}

// waitUntilListed waits until the inventory knows the engine, and has reported that.
func (g *fixture) waitUntilListed() {
	g.t.Helper()
	g.waitForAnswer("none", Gone)
	g.waitForChanges(1)
}

// waitForChanges waits until so many changes were reported.
func (g *fixture) waitForChanges(n int) {
	g.t.Helper()
	g.waitUntil("the changes are reported", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.changes) >= n
	})
}

// countChangesOfAll counts the Changes of all servers. Those of single ones may come between.
func (g *fixture) countChangesOfAll() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.changes {
		if c.All {
			n++
		}
	}
	return n
}

func (g *fixture) waitUntil(condition string, ok func() bool) {
	g.t.Helper()
	assert.Eventually(g.t, condition, func(testing.TB) error {
		if ok() {
			return nil
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		return fmt.Errorf("it is not so, after the changes %+v", g.changes)
	})
}

func (g *fixture) waitForAnswer(uid types.UID, want Answer) {
	g.t.Helper()
	g.waitUntil("the answer is as expected", func() bool { return g.inv.Get(uid).Answer == want })
}

// newSpec returns the spec of server a.
func newSpec() driver.ServerSpec {
	return driver.ServerSpec{
		Target: driver.Target{UID: "a"}, Namespace: "default", Name: "vm-a",
		Power: driver.PowerOn, CPUMilli: 2000, MemoryBytes: 4e9,
	}
}

// listEngine lists the engine once, without the loop.
func (g *fixture) listEngine() *fixture {
	g.t.Helper()
	assert.NoError(g.t, g.inv.listAll(g.t.Context()))
	return g
}

// ensureServer creates server a through the inventory.
func (g *fixture) ensureServer() driver.Server {
	g.t.Helper()
	s, err := g.inv.Ensure(g.t.Context(), newSpec())
	assert.NoError(g.t, err)
	return s
}

func (g *fixture) editServer(uid types.UID, edit func(*fake.Record)) {
	g.t.Helper()
	assert.NoError(g.t, g.memory.Edit(uid, edit))
}

// addServer creates a server of this cluster without the inventory.
func (g *fixture) addServer(uid types.UID) {
	g.t.Helper()
	g.editServer(uid, func(r *fake.Record) {
		r.ClusterID, r.Namespace, r.Name, r.State = "cluster", "default", "vm-"+string(uid), driver.StateRunning
	})
}

// takeChanges returns the changes since the last call: those of a UID, or those of
// everything.
func (g *fixture) takeChanges() []Change {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.changes
	g.changes = nil
	return all
}
