// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

const patience = 20 * time.Second

// meddler stands between the inventory and the driver and replaces calls where a
// test sets so. do is what the driver would have done.
type meddler struct {
	*fake.Driver
	mu       sync.Mutex
	ensure   func(do func() (driver.Server, error)) (driver.Server, error)
	delete   func(t driver.Target, do func() error) error
	list     func(ctx context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error)
	usage    func(do func() ([]driver.Usage, error)) ([]driver.Usage, error)
	engineID func(id string) string
	askID    func(ctx context.Context) error
	lists    int
	usages   int
}

// set changes what the meddler does, which may be in use at that moment.
func (m *meddler) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func hook[T any](m *meddler, field *T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *field
}

func (m *meddler) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	do := func() (driver.Server, error) { return m.Driver.Ensure(ctx, spec) }
	if instead := hook(m, &m.ensure); instead != nil {
		return instead(do)
	}
	return do()
}

func (m *meddler) Delete(ctx context.Context, t driver.Target, retain bool) error {
	do := func() error { return m.Driver.Delete(ctx, t, retain) }
	if instead := hook(m, &m.delete); instead != nil {
		return instead(t, do)
	}
	return do()
}

func (m *meddler) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	m.set(func() { m.lists++ })
	do := func() ([]driver.Server, error) { return m.Driver.List(ctx, uids...) }
	if instead := hook(m, &m.list); instead != nil {
		return instead(ctx, do)
	}
	return do()
}

func (m *meddler) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	m.set(func() { m.usages++ })
	do := func() ([]driver.Usage, error) { return m.Driver.Usage(ctx, uids...) }
	if instead := hook(m, &m.usage); instead != nil {
		return instead(do)
	}
	return do()
}

func (m *meddler) EngineID(ctx context.Context) (string, error) {
	if fail := hook(m, &m.askID); fail != nil {
		if err := fail(ctx); err != nil {
			return "", err
		}
	}
	id, err := m.Driver.EngineID(ctx)
	if instead := hook(m, &m.engineID); instead != nil && err == nil {
		id = instead(id)
	}
	return id, err
}

// rig is an inventory of an in-memory engine, with a fake clock.
type rig struct {
	t      *testing.T
	clock  *testingclock.FakeClock
	memory *fake.Memory
	engine *meddler
	inv    *Inventory

	mu      sync.Mutex
	changes []Change
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{t: t, clock: testingclock.NewFakeClock(t0)}
	g.memory = fake.NewMemory(g.clock)
	d, err := fake.New(fake.Options{ClusterID: "cluster", Memory: g.memory, Clock: g.clock, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	g.engine = &meddler{Driver: d}
	g.inv, err = New(Options{Name: "fake", Driver: g.engine, Clock: g.clock, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	g.inv.Subscribe(func(c Change) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.changes = append(g.changes, c)
	})
	return g
}

// start runs the inventory until the test ends.
func (g *rig) start() *rig {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.inv.Start(ctx) }()
	g.t.Cleanup(func() { cancel(); <-done })
	return g
}

// listed returns a rig whose inventory knows the engine.
func listed(t *testing.T) *rig {
	t.Helper()
	g := newRig(t).start()
	g.wantSoon("none", Gone)
	return g
}

func (g *rig) eventually(what string, ok func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			g.t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (g *rig) wantSoon(uid types.UID, want Answer) {
	g.t.Helper()
	g.eventually("the answer is as expected", func() bool { return g.inv.Get(uid).Answer == want })
}

// spec returns the spec of server a.
func spec() driver.ServerSpec {
	return driver.ServerSpec{
		Target: driver.Target{UID: "a"}, Namespace: "default", Name: "vm-a",
		Power: driver.PowerOn, CPUMilli: 2000, MemoryBytes: 4e9,
	}
}

// ensure creates server a through the inventory.
func (g *rig) ensure() driver.Server {
	g.t.Helper()
	s, err := g.inv.Ensure(g.t.Context(), spec())
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

func (g *rig) edit(uid types.UID, edit func(*fake.Record)) {
	g.t.Helper()
	if err := g.memory.Edit(uid, edit); err != nil {
		g.t.Fatal(err)
	}
}

// add creates a server of this cluster without the inventory.
func (g *rig) add(uid types.UID) {
	g.t.Helper()
	g.edit(uid, func(r *fake.Record) {
		r.ClusterID, r.Namespace, r.Name, r.State = "cluster", "default", "vm-"+string(uid), driver.StateRunning
	})
}

// told returns the changes since the last call: those of a UID, or those of
// everything.
func (g *rig) told() []Change {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.changes
	g.changes = nil
	return all
}
