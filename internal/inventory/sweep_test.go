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

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

// broom is a sweep of a rig's engine.
type broom struct {
	*rig
	sweep    *Sweep
	owners   map[types.UID]bool // in the API
	cached   map[types.UID]bool // in the cache, if different
	lives    int
	findings []Finding
}

func newBroom(t *testing.T) *broom {
	t.Helper()
	b := &broom{rig: newRig(t), owners: map[types.UID]bool{}}
	b.sweep = &Sweep{
		Inventory: b.inv, Epoch: func() uint64 { return 7 }, Policy: OrphanDelete, Grace: time.Minute,
		Cached: func(context.Context) (map[types.UID]bool, error) {
			if b.cached != nil {
				return b.cached, nil
			}
			return b.owners, nil
		},
		Live: func(context.Context) (map[types.UID]bool, error) { b.lives++; return b.owners, nil },
		Tell: func(f Finding) { b.findings = append(b.findings, f) },
	}
	return b
}

// addAll creates servers. They have no VM unless owners has them.
func (b *broom) addAll(n int) {
	b.t.Helper()
	for i := range n {
		b.add(types.UID(fmt.Sprintf("s%d", i)))
	}
}

func (b *broom) once() {
	b.t.Helper()
	if err := b.sweep.Once(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// left returns the UIDs of the servers that exist.
func (b *broom) left() string {
	var uids []string
	for _, r := range b.memory.Records() {
		uids = append(uids, string(r.UID))
	}
	slices.Sort(uids)
	return strings.Join(uids, " ")
}

func (b *broom) want(left string) {
	b.t.Helper()
	if got := b.left(); got != left {
		b.t.Errorf("servers left: %q, want %q", got, left)
	}
}

func TestSweepTakesTwoReadingsAndTheGracePeriod(t *testing.T) {
	b := newBroom(t)
	b.addAll(2)
	b.owners["s1"] = true
	b.once()
	b.want("s0 s1")
	b.clock.Step(59 * time.Second)
	b.once()
	b.want("s0 s1")
	b.clock.Step(time.Second)
	b.once()
	b.want("s1")
	if len(b.findings) != 1 || !b.findings[0].Deleted || b.findings[0].Server.UID != "s0" || b.findings[0].Server.Name != "vm-s0" {
		t.Errorf("told %+v", b.findings)
	}
	b.once()
	if len(b.findings) != 1 {
		t.Errorf("told again: %+v", b.findings)
	}
}

// TestOneReadingIsNotEnough checks this however long ago the reading was: time
// alone proves nothing.
func TestOneReadingIsNotEnough(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(1)
	b.once()
	b.want("s0")
	b.once()
	b.want("")
}

func TestAnOwnerBetweenReadingsBeginsAnew(t *testing.T) {
	b := newBroom(t)
	b.addAll(1)
	b.once()
	b.owners["s0"] = true
	b.clock.Step(time.Minute)
	b.once()
	delete(b.owners, "s0")
	b.once()
	b.clock.Step(59 * time.Second)
	b.once()
	b.want("s0")
	b.clock.Step(time.Second)
	b.once()
	b.want("")
}

func TestNeverSwept(t *testing.T) {
	for name, prepare := range map[string]func(*broom){
		"released": func(b *broom) {
			b.edit("s0", func(r *fake.Record) { r.Retained = true })
		},
		"another cluster's": func(b *broom) {
			b.edit("s0", func(r *fake.Record) { r.ClusterID = "another" })
		},
		"nobody's": func(b *broom) {
			b.edit("s0", func(r *fake.Record) { r.ClusterID = "" })
		},
		"owned in the cache alone": func(b *broom) { b.cached = map[types.UID]bool{"s0": true} },
		"owned in the API alone":   func(b *broom) { b.cached, b.owners["s0"] = map[types.UID]bool{}, true },
		"being fetched": func(b *broom) {
			b.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
				servers, err := do()
				for n := range servers {
					servers[n].State = driver.StatePending
				}
				return servers, err
			}
		},
		"nobody knows whose": func(b *broom) {
			b.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
				servers, err := do()
				for n := range servers {
					servers[n] = driver.Server{UID: servers[n].UID, State: servers[n].State, Err: errors.New("broken")}
				}
				return servers, err
			}
		},
		"orphan by policy report": func(b *broom) { b.sweep.Policy = OrphanReport },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroom(t)
			b.addAll(1)
			prepare(b)
			for range 5 {
				b.once()
				b.clock.Step(time.Hour)
			}
			b.want("s0")
		})
	}
}

// TestNothingIsSweptOnAFailedReading checks that a failed reading does not count as
// one.
func TestNothingIsSweptOnAFailedReading(t *testing.T) {
	failed := errors.New("failed")
	for name, fail := range map[string]func(*broom, bool){
		"of the API": func(b *broom, on bool) {
			b.sweep.Live = func(context.Context) (map[types.UID]bool, error) {
				if on {
					return nil, failed
				}
				return b.owners, nil
			}
		},
		"of the cache": func(b *broom, on bool) {
			b.sweep.Cached = func(context.Context) (map[types.UID]bool, error) {
				if on {
					return nil, failed
				}
				return b.owners, nil
			}
		},
		"of the engine": func(b *broom, on bool) { b.memory.SetAvailable(!on) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroom(t)
			b.addAll(1)
			b.once()
			fail(b, true)
			b.clock.Step(time.Hour)
			for range 3 {
				if err := b.sweep.Once(t.Context()); err == nil {
					t.Error("no error")
				}
			}
			b.want("s0")
			fail(b, false)
			b.once()
			b.want("")
		})
	}
}

// TestTheEngineIsListedFirst checks that a VM created meanwhile counts as an owner.
func TestTheEngineIsListedFirst(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(1)
	b.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
		servers, err := do()
		b.owners["s0"] = true
		return servers, err
	}
	for range 3 {
		b.once()
		b.want("s0")
		delete(b.owners, "s0")
	}
}

// TestTheAPIIsSpared checks that the API is not read live while the cache knows all
// owners. The engine is not listed either, once the inventory knows it.
func TestTheAPIIsSpared(t *testing.T) {
	b := newBroom(t)
	b.addAll(5)
	for n := range 5 {
		b.owners[types.UID(fmt.Sprintf("s%d", n))] = true
	}
	b.once()
	if b.lives != 0 || b.engine.lists != 1 {
		t.Errorf("the API was read %d times and the engine %d times, want 0 and 1", b.lives, b.engine.lists)
	}
	b.start().wantSoon("none", Gone)
	lists := hook(b.engine, &b.engine.lists)
	b.once()
	if now := hook(b.engine, &b.engine.lists); b.lives != 0 || now != lists {
		t.Errorf("the API was read %d times and the engine %d times, want none", b.lives, now-lists)
	}
}

// TestAnOrphanThatTheInventoryKnows checks that live readings must still prove it.
func TestAnOrphanThatTheInventoryKnows(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(3)
	b.owners["s1"], b.owners["s2"] = true, true
	b.cached = map[types.UID]bool{"s1": true}
	b.start().wantSoon("none", Gone)
	lists := hook(b.engine, &b.engine.lists)
	b.once()
	if now := hook(b.engine, &b.engine.lists); b.lives != 1 || now != lists+1 {
		t.Errorf("the API was read %d times and the engine %d times, want both once", b.lives, now-lists)
	}
	b.want("s0 s1 s2")
	b.once()
	b.want("s1 s2")
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
			b := newBroom(t)
			b.sweep.Grace, b.sweep.Max, b.sweep.Policy = 0, tc.allowed, tc.policy
			b.addAll(tc.servers)
			for n := tc.orphans; n < tc.servers; n++ {
				b.owners[types.UID(fmt.Sprintf("s%d", n))] = true
			}
			for range 3 {
				b.once()
			}
			frozen := 0
			for _, f := range b.findings {
				if f.Frozen {
					frozen++
				}
			}
			if (frozen == 1) != tc.frozen || frozen > 1 {
				t.Errorf("told of a freeze %d times, want %t: %+v", frozen, tc.frozen, b.findings)
			}
			left := tc.servers
			if !tc.frozen && tc.policy == OrphanDelete {
				left -= tc.orphans
			}
			if n := len(b.memory.Records()); n != left {
				t.Errorf("%d servers are left, want %d", n, left)
			}
		})
	}
}

// TestThaw checks that the rest is swept once enough orphans were removed by hand,
// and that the next freeze is reported again.
func TestThaw(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(4)
	b.once()
	b.once()
	b.want("s0 s1 s2 s3")
	b.memory.Remove("s0")
	b.once()
	b.want("")
	b.addAll(4)
	b.once()
	told := 0
	for _, f := range b.findings {
		if f.Frozen {
			told++
			if !strings.Contains(f.Note, "4 of 4") || !strings.Contains(f.Note, "--orphan-max=4") {
				t.Errorf("the note is %q", f.Note)
			}
		}
	}
	if told != 2 {
		t.Errorf("told of %d freezes, want 2", told)
	}
}

func TestReportTellsOnce(t *testing.T) {
	b := newBroom(t)
	b.sweep.Policy = OrphanReport
	b.addAll(2)
	for range 4 {
		b.once()
		b.clock.Step(time.Minute)
	}
	if len(b.findings) != 2 || b.findings[0].Deleted || b.findings[1].Deleted {
		t.Errorf("told %+v, want each once", b.findings)
	}
}

// TestOneFailureHoldsNobodyElse checks that a failure does not block other orphans,
// and that a server that vanished is no failure.
func TestOneFailureHoldsNobodyElse(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(3)
	b.engine.delete = func(target driver.Target, do func() error) error {
		if target.Epoch != 7 || target.ID == "" {
			t.Errorf("deleted with %+v", target)
		}
		switch target.UID {
		case "s0":
			return errors.New("stuck")
		case "s1":
			b.memory.Remove("s1")
		}
		return do()
	}
	b.once()
	if err := b.sweep.Once(t.Context()); err == nil || !strings.Contains(err.Error(), "default/vm-s0") || strings.Contains(err.Error(), "vm-s1") {
		t.Errorf("error %v", err)
	}
	b.want("s0")
	if len(b.findings) != 2 {
		t.Errorf("told %+v", b.findings)
	}
}

func TestSweepRunsUntilItIsStopped(t *testing.T) {
	b := newBroom(t)
	b.addAll(1)
	b.add("kept")
	b.owners["kept"] = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.sweep.Start(ctx) }()
	b.eventually("it waits", b.clock.HasWaiters)
	b.eventually("the orphan is swept", func() bool {
		b.clock.Step(30 * time.Second)
		return b.left() == "kept"
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// fetching is an engine that also fetches images for servers.
type fetching struct {
	*meddler
	uids []types.UID
}

func (f *fetching) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	servers, err := f.meddler.List(ctx, uids...)
	for _, uid := range f.uids {
		servers = append(servers, driver.Server{UID: uid, Namespace: "default", Name: "vm-" + string(uid), State: driver.StatePending})
	}
	return servers, err
}

func (f *fetching) Abandon(_ context.Context, uid types.UID) error {
	f.uids = slices.DeleteFunc(f.uids, func(u types.UID) bool { return u == uid })
	return nil
}

// TestAFetchForNobodyIsAbandoned checks that fetches follow the rules for servers,
// whatever the policy for servers is. A fetch does not count as a server, and
// afterwards nothing is read live any more.
func TestAFetchForNobodyIsAbandoned(t *testing.T) {
	for _, policy := range []OrphanPolicy{OrphanDelete, OrphanReport} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBroom(t)
			engine := &fetching{meddler: b.engine, uids: []types.UID{"f0", "f1", "f2", "f3", "f4", "wanted"}}
			b.inv.Driver, b.sweep.Policy = engine, policy
			b.owners["wanted"] = true
			b.once()
			b.clock.Step(59 * time.Second)
			b.once()
			if len(engine.uids) != 6 {
				t.Errorf("within the grace period %v are left", engine.uids)
			}
			b.clock.Step(time.Second)
			b.once()
			if !slices.Equal(engine.uids, []types.UID{"wanted"}) {
				t.Errorf("%v are left, want the one that is wanted", engine.uids)
			}
			lives := b.lives
			b.once()
			if b.lives != lives || len(b.findings) != 0 {
				t.Errorf("%d more live readings and the findings %+v, want none", b.lives-lives, b.findings)
			}
		})
	}
}
