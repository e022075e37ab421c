// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

// sweepFixture is a sweep of a fixture's engine.
type sweepFixture struct {
	*fixture
	sweep     *Sweep
	owners    map[types.UID]bool // in the API
	cached    map[types.UID]bool // in the cache, if different
	liveReads int
	findings  []Finding
}

// newSweepFixture returns a sweep of an engine with servers, each without a VM unless owners has it.
func newSweepFixture(t *testing.T, servers int) *sweepFixture {
	t.Helper()
	b := &sweepFixture{fixture: newFixture(t), owners: map[types.UID]bool{}}
	b.sweep = &Sweep{
		Inventory: b.inv, Epoch: func() uint64 { return 7 }, Policy: OrphanDelete, Grace: time.Minute,
		Cached: func(context.Context) (map[types.UID]bool, error) {
			if b.cached != nil {
				return b.cached, nil
			}
			return b.owners, nil
		},
		Live:   func(context.Context) (map[types.UID]bool, error) { b.liveReads++; return b.owners, nil },
		Report: func(f Finding) { b.findings = append(b.findings, f) },
	}
	b.addServers(servers)
	return b
}

// withoutGrace removes the grace period, so that two readings are enough to prove that there is no owner.
func (b *sweepFixture) withoutGrace() *sweepFixture { b.sweep.Grace = 0; return b }

func (b *sweepFixture) addServers(n int) {
	b.t.Helper()
	for i := range n {
		b.addServer(types.UID(fmt.Sprintf("s%d", i)))
	}
}

func (b *sweepFixture) sweepOnce() {
	b.t.Helper()
	assert.NoError(b.t, b.sweep.RunOnce(b.t.Context()))
}

// remaining returns the UIDs of the servers that exist.
func (b *sweepFixture) remaining() string {
	var uids []string
	for _, r := range b.memory.Records() {
		uids = append(uids, string(r.UID))
	}
	slices.Sort(uids)
	return strings.Join(uids, " ")
}

func (b *sweepFixture) wantRemaining(left string) {
	b.t.Helper()
	if got := b.remaining(); got != left {
		b.t.Errorf("servers left: %q, want %q", got, left)
	}
}

func TestSweepNeedsTwoReadingsAndGrace(t *testing.T) {
	b := newSweepFixture(t, 2)
	b.owners["s1"] = true
	b.sweepOnce()
	b.wantRemaining("s0 s1")
	b.clock.Step(59 * time.Second)
	b.sweepOnce()
	b.wantRemaining("s0 s1")
	b.clock.Step(time.Second)
	b.sweepOnce()
	b.wantRemaining("s1")
	assert.True(t, len(b.findings) == 1 && b.findings[0].Deleted && b.findings[0].Server.UID == "s0" && b.findings[0].Server.Name == "vm-s0",
		"reported %+v", b.findings)
	b.sweepOnce()
	assert.True(t, len(b.findings) == 1, "reported again: %+v", b.findings)
}

func TestOwnerBetweenReadingsRestartsGrace(t *testing.T) {
	b := newSweepFixture(t, 1)
	b.sweepOnce()
	b.owners["s0"] = true
	b.clock.Step(time.Minute)
	b.sweepOnce()
	delete(b.owners, "s0")
	b.sweepOnce()
	b.clock.Step(59 * time.Second)
	b.sweepOnce()
	b.wantRemaining("s0")
	b.clock.Step(time.Second)
	b.sweepOnce()
	b.wantRemaining("")
}

func TestNeverSwept(t *testing.T) {
	edited := func(edit func(*fake.Record)) func(*sweepFixture) {
		return func(b *sweepFixture) { b.editServer("s0", edit) }
	}
	for name, prepare := range map[string]func(*sweepFixture){
		"released":                 edited(func(r *fake.Record) { r.Retained = true }),
		"another cluster's":        edited(func(r *fake.Record) { r.ClusterID = "another" }),
		"no cluster's":             edited(func(r *fake.Record) { r.ClusterID = "" }),
		"owned in the cache alone": func(b *sweepFixture) { b.cached = map[types.UID]bool{"s0": true} },
		"owned in the API alone":   func(b *sweepFixture) { b.cached, b.owners["s0"] = map[types.UID]bool{}, true },
		"being fetched": func(b *sweepFixture) {
			b.engine.editList(func(s *driver.Server) { s.State = driver.StatePending })
		},
		"of an unknown cluster": func(b *sweepFixture) {
			b.engine.editList(func(s *driver.Server) { *s = driver.Server{UID: s.UID, State: s.State, Err: errors.New("broken")} })
		},
		"orphan by policy report": func(b *sweepFixture) { b.sweep.Policy = OrphanReport },
	} {
		t.Run(name, func(t *testing.T) {
			b := newSweepFixture(t, 1)
			prepare(b)
			for range 5 {
				b.sweepOnce()
				b.clock.Step(time.Hour)
			}
			b.wantRemaining("s0")
		})
	}
}

// TestFailedReadingSweepsNothing checks that a failed reading does not count as a
// reading.
func TestFailedReadingSweepsNothing(t *testing.T) {
	reading := func(b *sweepFixture, fails bool) func(context.Context) (map[types.UID]bool, error) {
		return func(context.Context) (map[types.UID]bool, error) {
			if fails {
				return nil, errors.New("failed")
			}
			return b.owners, nil
		}
	}
	for name, fail := range map[string]func(*sweepFixture, bool){
		"of the API":    func(b *sweepFixture, on bool) { b.sweep.Live = reading(b, on) },
		"of the cache":  func(b *sweepFixture, on bool) { b.sweep.Cached = reading(b, on) },
		"of the engine": func(b *sweepFixture, on bool) { b.memory.SetAvailable(!on) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newSweepFixture(t, 1)
			b.sweepOnce()
			fail(b, true)
			b.clock.Step(time.Hour)
			for range 3 {
				assert.True(t, b.sweep.RunOnce(t.Context()) != nil, "no error")
			}
			b.wantRemaining("s0")
			fail(b, false)
			b.sweepOnce()
			b.wantRemaining("")
		})
	}
}

// TestSweepListsEngineFirst checks that a VM created meanwhile counts as an owner.
func TestSweepListsEngineFirst(t *testing.T) {
	b := newSweepFixture(t, 1).withoutGrace()
	b.engine.list = func(_ context.Context, do doList) ([]driver.Server, error) {
		servers, err := do()
		b.owners["s0"] = true
		return servers, err
	}
	for range 3 {
		b.sweepOnce()
		b.wantRemaining("s0")
		delete(b.owners, "s0")
	}
}

// TestOwnedServersNeedNoLiveRead checks that the API is not read live while the cache
// knows all owners. The engine is not listed either, once the inventory knows it.
func TestOwnedServersNeedNoLiveRead(t *testing.T) {
	b := newSweepFixture(t, 5)
	for n := range 5 {
		b.owners[types.UID(fmt.Sprintf("s%d", n))] = true
	}
	b.sweepOnce()
	assert.True(t, b.liveReads == 0 && b.engine.lists == 1, "the API was read %d times and the engine %d times, want 0 and 1", b.liveReads, b.engine.lists)
	b.startLoop().waitForAnswer("none", Gone)
	lists := b.engine.countLists()
	b.sweepOnce()
	now := b.engine.countLists()
	assert.True(t, b.liveReads == 0 && now == lists, "the API was read %d times and the engine %d times, want none", b.liveReads, now-lists)
}

// TestUnsettledCreationNeedsNoLiveRead checks that a UID that is known only from a creation with
// an unknown outcome does not have a server that could be an orphan.
func TestUnsettledCreationNeedsNoLiveRead(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.startLoop().waitForAnswer("none", Gone)
	b.engine.failEnsure(context.DeadlineExceeded)
	_, _ = b.inv.Ensure(t.Context(), newSpec())
	lists := b.engine.countLists()
	b.sweepOnce()
	now := b.engine.countLists()
	assert.True(t, b.liveReads == 0 && now == lists, "the API was read %d times and the engine %d times, want none", b.liveReads, now-lists)
}

// TestCachedOrphanNeedsLiveReads checks that live readings must still prove that a server is an orphan.
func TestCachedOrphanNeedsLiveReads(t *testing.T) {
	b := newSweepFixture(t, 3).withoutGrace()
	b.owners["s1"], b.owners["s2"] = true, true
	b.cached = map[types.UID]bool{"s1": true}
	b.startLoop().waitForAnswer("none", Gone)
	lists := b.engine.countLists()
	b.sweepOnce()
	now := b.engine.countLists()
	assert.True(t, b.liveReads == 1 && now == lists+1, "the API was read %d times and the engine %d times, want both once", b.liveReads, now-lists)
	b.wantRemaining("s0 s1 s2")
	b.sweepOnce()
	b.wantRemaining("s1 s2")
}

func TestFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		servers, orphans, allowed int
		policy                    OrphanPolicy
		frozen                    bool
	}{
		"three of three":            {3, 3, 0, OrphanDelete, false},
		"four of four":              {4, 4, 0, OrphanDelete, true},
		"four of 40":                {40, 4, 0, OrphanDelete, false},
		"four of 39":                {39, 4, 0, OrphanDelete, true},
		"four, four allowed":        {4, 4, 4, OrphanDelete, false},
		"four, one allowed":         {4, 4, 1, OrphanDelete, true},
		"five, four allowed":        {5, 5, 4, OrphanDelete, true},
		"four, where none is swept": {4, 4, 0, OrphanReport, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSweepFixture(t, tc.servers).withoutGrace()
			b.sweep.Max, b.sweep.Policy = tc.allowed, tc.policy
			for n := tc.orphans; n < tc.servers; n++ {
				b.owners[types.UID(fmt.Sprintf("s%d", n))] = true
			}
			for range 3 {
				b.sweepOnce()
			}
			frozen := len(b.freezes())
			assert.True(t, (frozen == 1) == tc.frozen && frozen <= 1, "%d freezes reported, want %t: %+v", frozen, tc.frozen, b.findings)
			left := tc.servers
			if !tc.frozen && tc.policy == OrphanDelete {
				left -= tc.orphans
			}
			assert.Equal(t, "the metric says frozen", testutil.ToFloat64(orphanSweepFrozen.WithLabelValues("fake")) == 1, tc.frozen)
			n := testutil.ToFloat64(orphanServers.WithLabelValues("fake"))
			assert.True(t, n == float64(left-tc.servers+tc.orphans), "the metric says that %v are orphans", n)
			if n := len(b.memory.Records()); n != left {
				t.Errorf("%d servers are left, want %d", n, left)
			}
		})
	}
}

// TestThaw checks that the rest is swept once enough orphans were removed by hand,
// and that the next freeze is reported again.
func TestThaw(t *testing.T) {
	b := newSweepFixture(t, 4).withoutGrace()
	b.sweepOnce()
	b.sweepOnce()
	b.wantRemaining("s0 s1 s2 s3")
	b.memory.Remove("s0")
	b.sweepOnce()
	b.wantRemaining("")
	assert.True(t, testutil.ToFloat64(orphanSweepFrozen.WithLabelValues("fake")) == 0, "the metric says that it is still frozen")
	b.addServers(4)
	b.sweepOnce()
	for _, f := range b.freezes() {
		assert.True(t, strings.Contains(f.Message, "4 of 4") && strings.Contains(f.Message, "--orphan-max=4"), "the note is %q", f.Message)
	}
	assert.Equal(t, "freezes reported", len(b.freezes()), 2)
}

// freezes are the findings that the sweep is frozen.
func (b *sweepFixture) freezes() []Finding {
	return slices.DeleteFunc(slices.Clone(b.findings), func(f Finding) bool { return !f.Frozen })
}

func TestOrphanIsReportedOnce(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.sweep.Policy = OrphanReport
	b.addServers(2)
	for range 4 {
		b.sweepOnce()
		b.clock.Step(time.Minute)
	}
	assert.True(t, len(b.findings) == 2 && !b.findings[0].Deleted && !b.findings[1].Deleted, "reported %+v, want each once", b.findings)
	for _, f := range b.findings {
		assert.True(t, f.Server.Name != "" && strings.Contains(f.Message, "--orphan-policy=report"), "reported %+v", f)
	}
}

// TestFailedDeletionBlocksNoOther checks that a failure does not block other orphans,
// and that a server that vanished does not count as a failure.
func TestFailedDeletionBlocksNoOther(t *testing.T) {
	b := newSweepFixture(t, 3).withoutGrace()
	b.engine.delete = func(target driver.Target, do func() error) error {
		assert.True(t, target.Epoch == 7 && target.ID != "", "deleted with %+v", target)
		switch target.UID {
		case "s0":
			return errors.New("stuck")
		case "s1":
			b.memory.Remove("s1")
		}
		return do()
	}
	b.sweepOnce()
	if err := b.sweep.RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "delete orphan") || !strings.Contains(err.Error(), "default/vm-s0") || strings.Contains(err.Error(), "vm-s1") {
		t.Errorf("error %v", err)
	}
	b.wantRemaining("s0")
	assert.True(t, len(b.findings) == 2, "reported %+v", b.findings)
}

func TestSweepPeriod(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{
		0: time.Second, 2 * time.Second: time.Second, 3 * time.Second: 1500 * time.Millisecond,
		time.Minute: 30 * time.Second, 2 * time.Minute: time.Minute, time.Hour: time.Minute,
	} {
		assert.Equal(t, fmt.Sprintf("grace period %s: every", grace), (&Sweep{Grace: grace}).period(), want)
	}
}

// TestYoungOrphansDelayNoOther checks that a server which has only just lost its owner does not
// delay the servers after it in the engine's list.
func TestYoungOrphansDelayNoOther(t *testing.T) {
	b := newSweepFixture(t, 0)
	engine := &fetchingDriver{hookedDriver: b.engine, uids: []types.UID{"f1"}}
	b.inv.Driver = engine
	b.engine.list = func(_ context.Context, do doList) ([]driver.Server, error) {
		servers, err := do()
		slices.SortFunc(servers, func(x, y driver.Server) int { return strings.Compare(string(x.UID), string(y.UID)) })
		return servers, err
	}
	b.addServer("s1")
	b.sweepOnce()
	b.clock.Step(time.Minute)
	b.addServer("s0")
	engine.uids = []types.UID{"f0", "f1"}
	b.sweepOnce()
	b.wantRemaining("s0")
	assert.True(t, slices.Equal(engine.uids, []types.UID{"f0"}), "the fetches %v are left, want f0", engine.uids)
}

// TestServersAreNoFetches checks that no fetch is abandoned for a server that waits for an image,
// or of which only the existence is known.
func TestServersAreNoFetches(t *testing.T) {
	b := newSweepFixture(t, 0)
	engine := &fetchingDriver{hookedDriver: b.engine}
	b.inv.Driver, b.sweep.Grace = engine, 0
	b.engine.list = func(context.Context, doList) ([]driver.Server, error) {
		return []driver.Server{{UID: "a", ID: "1", State: driver.StatePending}, {UID: "b", State: driver.StateRunning}}, nil
	}
	for range 3 {
		b.sweepOnce()
	}
	assert.True(t, len(engine.ended) == 0, "abandoned %v", engine.ended)
}

// TestFailedAbandonment checks that the error names the fetch, and that other fetches end.
func TestFailedAbandonment(t *testing.T) {
	b := newSweepFixture(t, 0)
	engine := &fetchingDriver{hookedDriver: b.engine, uids: []types.UID{"f0", "f1"}, stuck: "f0"}
	b.inv.Driver, b.sweep.Grace = engine, 0
	b.sweepOnce()
	b.sweepOnceFails("default/vm-f0")
	assert.True(t, slices.Equal(engine.uids, []types.UID{"f0"}), "the fetches %v are left, want f0", engine.uids)
}

// TestDeletionThatTakesTimeIsReportedOnce checks a server that is listed after its deletion,
// even if it is not to be deleted any more then.
func TestDeletionThatTakesTimeIsReportedOnce(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.sweep.Grace, b.sweep.Policy = 0, OrphanReport
	b.addServers(1)
	b.approve(map[driver.Target]bool{b.target("s0"): true}, nil)
	b.engine.delete = func(driver.Target, func() error) error { return nil }
	for range 4 {
		b.sweepOnce()
	}
	b.approve(nil, nil)
	b.sweepOnce()
	assert.True(t, len(b.findings) == 1 && b.findings[0].Deleted && b.findings[0].Message == "no VirtualMachine owned it",
		"reported %+v, want that it was deleted", b.findings)
}

// deletingDriver keeps the context of its last deletion.
type deletingDriver struct {
	*hookedDriver
	deletion context.Context
}

func (d *deletingDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	d.deletion = ctx
	return d.hookedDriver.Delete(ctx, t, retain)
}

// TestSweepLeavesNothing checks that each call of a sweep has a time limit and ends with the sweep.
func TestSweepLeavesNothing(t *testing.T) {
	b := newSweepFixture(t, 0)
	calls := map[string]context.Context{}
	note := func(call string, ctx context.Context) { calls[call] = ctx } //nolint:fatcontext // only looked at
	engine := &deletingDriver{hookedDriver: b.engine}
	b.inv.Driver, b.sweep.Grace, b.sweep.Policy = engine, 0, OrphanReport
	b.addServers(1)
	target := b.target("s0")
	b.engine.list = func(ctx context.Context, do doList) ([]driver.Server, error) {
		note("list", ctx)
		return do()
	}
	b.sweep.Live = func(ctx context.Context) (map[types.UID]bool, error) { note("owners", ctx); return nil, nil }
	b.sweep.Approved = func(ctx context.Context) (map[driver.Target]bool, error) {
		note("approvals", ctx)
		return map[driver.Target]bool{target: true}, nil
	}
	b.sweepOnce()
	b.sweepOnce()
	b.wantRemaining("")
	calls["deletion"] = engine.deletion
	for _, name := range []string{"list", "owners", "approvals", "deletion"} {
		_, limited := calls[name].Deadline()
		assert.True(t, limited && calls[name].Err() != nil, "%s: limited %v, ended: %v", name, limited, calls[name].Err())
	}
}

// TestUnreadableCacheFailsSweep checks that a sweep fails if the cache of owners cannot be read
// while the engine is known.
func TestUnreadableCacheFailsSweep(t *testing.T) {
	b := newSweepFixture(t, 1).withoutGrace()
	b.startLoop().waitForAnswer("none", Gone)
	b.sweepOnce()
	b.sweep.Cached = func(context.Context) (map[types.UID]bool, error) { return nil, errors.New("no cache") }
	lists := b.engine.countLists()
	b.sweepOnceFails("no cache")
	now := b.engine.countLists()
	assert.True(t, now == lists, "the engine was listed %d times, want none", now-lists)
	b.wantRemaining("s0")
}

func TestSweepRunsUntilItIsStopped(t *testing.T) {
	b := newSweepFixture(t, 1)
	b.addServer("kept")
	b.owners["kept"] = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.sweep.Start(ctx) }()
	b.waitUntil("it waits", b.clock.HasWaiters)
	b.waitUntil("the orphan is swept", func() bool {
		b.clock.Step(30 * time.Second)
		return b.remaining() == "kept"
	})
	cancel()
	assert.NoError(t, <-done)
	assert.True(t, b.sweep.NeedLeaderElection(), "it would run on standbys too")
}

// fetchingDriver is an engine that also fetches images for servers.
type fetchingDriver struct {
	*hookedDriver
	uids  []types.UID
	stuck types.UID // its fetch cannot be abandoned
	ended []types.UID
}

func (f *fetchingDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	servers, err := f.hookedDriver.List(ctx, uids...)
	for _, uid := range f.uids {
		servers = append(servers, driver.Server{UID: uid, Namespace: "default", Name: "vm-" + string(uid), State: driver.StatePending})
	}
	return servers, err
}

func (f *fetchingDriver) Abandon(_ context.Context, uid types.UID) error {
	if uid == f.stuck {
		return errors.New("stuck")
	}
	f.ended = append(f.ended, uid)
	f.uids = slices.DeleteFunc(f.uids, func(u types.UID) bool { return u == uid })
	return nil
}

// TestOrphanedFetchIsAbandoned checks that fetches follow the rules for servers,
// whatever the policy for servers is. A fetch does not count as a server, and
// afterwards nothing is read live any more.
func TestOrphanedFetchIsAbandoned(t *testing.T) {
	for _, policy := range []OrphanPolicy{OrphanDelete, OrphanReport} {
		t.Run(string(policy), func(t *testing.T) {
			b := newSweepFixture(t, 0)
			engine := &fetchingDriver{hookedDriver: b.engine, uids: []types.UID{"f0", "f1", "f2", "f3", "f4", "wanted"}}
			b.inv.Driver, b.sweep.Policy = engine, policy
			b.owners["wanted"] = true
			b.sweepOnce()
			b.clock.Step(59 * time.Second)
			b.sweepOnce()
			assert.True(t, len(engine.uids) == 6, "within the grace period %v are left", engine.uids)
			b.clock.Step(time.Second)
			b.sweepOnce()
			assert.True(t, slices.Equal(engine.uids, []types.UID{"wanted"}), "%v are left, want the one that is wanted", engine.uids)
			lives := b.liveReads
			b.sweepOnce()
			assert.True(t, b.liveReads == lives && len(b.findings) == 0, "%d more live readings and the findings %+v, want none", b.liveReads-lives, b.findings)
		})
	}
}

// approve makes the sweep find approvals, by UID and ID.
func (b *sweepFixture) approve(approved map[driver.Target]bool, err error) {
	b.sweep.Approved = func(context.Context) (map[driver.Target]bool, error) { return approved, err }
}

// target returns the UID and the ID of a server.
func (b *sweepFixture) target(uid types.UID) driver.Target {
	b.t.Helper()
	for _, r := range b.memory.Records() {
		if r.UID == uid {
			return driver.Target{UID: r.UID, ID: r.ID}
		}
	}
	b.t.Fatalf("there is no server %s", uid)
	return driver.Target{}
}

// TestApprovedOrphans checks that a person's approval removes an orphan that the sweep would
// leave, after two readings and the grace period, and neither one that has an owner nor
// another server of the UID.
func TestApprovedOrphans(t *testing.T) {
	for name, set := range map[string]func(*Sweep){
		"reported": func(s *Sweep) { s.Policy = OrphanReport },
		"frozen":   func(*Sweep) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSweepFixture(t, 0)
			set(b.sweep)
			b.addServers(6)
			b.owners["s5"] = true
			another := b.target("s1")
			another.ID += "x"
			b.approve(map[driver.Target]bool{b.target("s0"): true, b.target("s5"): true, another: true}, nil)
			b.sweepOnce()
			b.clock.Step(59 * time.Second)
			b.sweepOnce()
			b.wantRemaining("s0 s1 s2 s3 s4 s5")
			b.clock.Step(time.Second)
			b.sweepOnce()
			b.wantRemaining("s1 s2 s3 s4 s5")
			deleted := slices.DeleteFunc(b.findings, func(f Finding) bool { return !f.Deleted })
			assert.True(t, len(deleted) == 1 && deleted[0].Server.UID == "s0", "reported %+v", deleted)
		})
	}
}

// TestApprovalAfterReport checks that a removal is reported though the orphan was reported
// as left before.
func TestApprovalAfterReport(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.sweep.Policy, b.sweep.Grace = OrphanReport, 0
	b.addServers(1)
	b.sweepOnce()
	b.sweepOnce()
	b.approve(map[driver.Target]bool{b.target("s0"): true}, nil)
	b.sweepOnce()
	b.sweepOnce()
	b.wantRemaining("")
	assert.True(t, len(b.findings) == 2 && !b.findings[0].Deleted && b.findings[1].Deleted, "reported %+v", b.findings)
}

// TestUnreadableApprovals checks that nothing is removed without an answer, and that nothing is
// read while it is not needed.
func TestUnreadableApprovals(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.sweep.Policy, b.sweep.Grace = OrphanReport, 0
	b.approve(nil, errors.New("the API is away"))
	b.sweepOnce()
	b.addServers(1)
	b.sweepOnceFails("the API is away")
	b.sweepOnceFails("the API is away")
	b.wantRemaining("s0")
	b.sweep.Policy = OrphanDelete
	b.sweepOnce()
	b.wantRemaining("")
}

func (b *sweepFixture) sweepOnceFails(message string) {
	b.t.Helper()
	if err := b.sweep.RunOnce(b.t.Context()); err == nil || !strings.Contains(err.Error(), message) {
		b.t.Errorf("got %v, want %q", err, message)
	}
}

// TestOrphanToRetain checks that the server of a VirtualMachine that vanished with
// deletionPolicy Retain is released at once, and removed by none.
func TestOrphanToRetain(t *testing.T) {
	b := newSweepFixture(t, 2)
	b.inv.NoteRetained("s0")
	b.sweepOnce()
	b.wantRetained("s0")
	b.clock.Step(time.Hour)
	b.sweepOnce()
	b.wantRemaining("s0")
	assert.True(t, len(b.findings) == 2 && b.findings[0].Released && b.findings[0].Server.UID == "s0" && b.findings[0].Message != "" && b.findings[1].Deleted,
		"reported %+v", b.findings)
}

func (b *sweepFixture) wantRetained(uid types.UID) {
	b.t.Helper()
	for _, r := range b.memory.Records() {
		if r.Retained != (r.UID == uid) {
			b.t.Errorf("the server of %s: retained %v", r.UID, r.Retained)
		}
	}
}

func TestOrphanToRetainIsLeft(t *testing.T) {
	for name, prepare := range map[string]func(*sweepFixture){
		"owned":            func(b *sweepFixture) { b.owners["s0"] = true },
		"by policy report": func(b *sweepFixture) { b.sweep.Policy = OrphanReport },
		"frozen":           func(b *sweepFixture) { b.addServers(alwaysAllowed + 1) },
		"the engine fails": func(b *sweepFixture) {
			b.engine.delete = func(driver.Target, func() error) error { return errors.New("no") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSweepFixture(t, 1)
			b.inv.NoteRetained("s0")
			prepare(b)
			for range 3 {
				_ = b.sweep.RunOnce(t.Context())
				b.clock.Step(time.Hour)
			}
			b.wantRetained("")
			assert.True(t, strings.HasPrefix(b.remaining(), "s0"), "the servers are %s", b.remaining())
			isOrphan := slices.ContainsFunc(b.findings, func(f Finding) bool { return f.Server.UID == "s0" })
			want := b.sweep.Policy == OrphanReport
			assert.True(t, isOrphan == want, "reported as an orphan: %v, want %v", isOrphan, want)
		})
	}
}

func TestFailedReleaseIsReported(t *testing.T) {
	b := newSweepFixture(t, 1)
	b.inv.NoteRetained("s0")
	b.engine.delete = func(driver.Target, func() error) error { return errors.New("stuck") }
	err := b.sweep.RunOnce(t.Context())
	assert.True(t, err != nil && strings.Contains(err.Error(), "release orphan") && strings.Contains(err.Error(), "stuck"), "error %v", err)
	assert.True(t, len(b.findings) == 0, "reported %+v", b.findings)
}

// TestOrphanToRetainIsMadeLate checks that a server which is made after its VirtualMachine is gone
// is released too: the API server may remove an object while its finalizer is being written.
func TestOrphanToRetainIsMadeLate(t *testing.T) {
	b := newSweepFixture(t, 0)
	b.inv.NoteRetained("s0")
	b.sweepOnce()
	b.addServers(1)
	b.sweepOnce()
	b.wantRetained("s0")
}

// TestNotesAreForgotten checks that notes that no server needs are not kept.
func TestNotesAreForgotten(t *testing.T) {
	b := newSweepFixture(t, 1)
	b.inv.NoteRetained("s0")
	b.inv.NoteRetained("absent")
	b.startLoop()
	b.waitForAnswer("absent", Gone)
	for _, step := range []struct {
		after time.Duration
		want  []types.UID
	}{{noteLife, []types.UID{"absent", "s0"}}, {time.Second, []types.UID{"s0"}}} {
		b.clock.Step(step.after)
		result, err := b.inv.queryEngine(t.Context())
		if err != nil || b.inv.cache.applyResult(result) != nil {
			t.Fatal("the engine cannot be listed", err)
		}
		noted := b.inv.cache.noted.Keys()
		slices.Sort(noted)
		assert.True(t, slices.Equal(noted, step.want), "noted %v, want %v", noted, step.want)
	}
}

// TestReleaseEnded checks that each sweep cleans up released servers, even if all servers have an
// owner, and that a failure of one half of the sweep does not prevent the other.
func TestReleaseEnded(t *testing.T) {
	t.Parallel()
	b := newSweepFixture(t, 0)
	calls, failure := 0, errors.New("no API server")
	b.engine.withLock(func() {
		b.engine.releaseEnded = func(ctx context.Context, _ []types.UID) error {
			_, bounded := ctx.Deadline()
			assert.True(t, bounded, "the call lacks a deadline")
			calls++
			return failure
		}
	})
	b.addServers(1)
	if err := b.sweep.RunOnce(t.Context()); !errors.Is(err, failure) || calls != 1 || b.sweep.orphans["s0"] == nil {
		t.Errorf("the sweep returns %v after %d calls, and knows the orphans %v", err, calls, b.sweep.orphans)
	}
	b.owners["s0"], failure = true, nil
	b.sweepOnce()
	b.sweep.Cached = func(context.Context) (map[types.UID]bool, error) { return nil, errors.New("no cache") }
	err := b.sweep.RunOnce(t.Context())
	assert.True(t, err != nil && calls == 3, "a sweep without owners returns %v after %d calls", err, calls)
}

// TestReleaseEndedOrphans checks that the driver releases orphans that may not be removed, once they have
// been without an owner often and long enough.
func TestReleaseEndedOrphans(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		orphans int
		policy  OrphanPolicy
	}{"reported": {1, OrphanReport}, "frozen": {alwaysAllowed + 1, OrphanDelete}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSweepFixture(t, 0)
			b.sweep.Policy = tc.policy
			var gone [][]types.UID
			b.engine.withLock(func() {
				b.engine.releaseEnded = func(_ context.Context, uids []types.UID) error {
					gone = append(gone, uids)
					return nil
				}
			})
			b.addServers(tc.orphans)
			b.sweepOnce()
			b.clock.Step(b.sweep.Grace)
			b.sweepOnce()
			assert.True(t, len(gone) == 2 && len(gone[0]) == 0 && len(gone[1]) == tc.orphans,
				"the driver gets %v, want %d orphans from the second sweep", gone, tc.orphans)
			left := len(b.memory.Records())
			assert.True(t, left == tc.orphans, "%d servers are left, want %d", left, tc.orphans)
		})
	}
}
