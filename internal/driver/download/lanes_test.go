// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/test/assert"
)

const (
	review = 10 * time.Second // between two reviews of a slot
	enough = 10 << 20         // bytes that keep a slot at a review
	large  = 64 << 20         // bytes of a large content
)

// newLanes returns a rig with four slots in each lane, whose fetches do not stall.
func newLanes(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.Concurrency, r.Stall = download.DefaultConcurrency, 1000*time.Hour
	r.Notify = func(...types.UID) {}
	return r
}

// awaitRunning waits until all running fetches watch the clock, and so the last reviews have ended.
func (r *rig) awaitRunning(running int) {
	r.t.Helper()
	assert.Eventually(r.t, "the fetches watch the clock", func(testing.TB) error {
		return unless(r.clock.Waiters() == 2*running)
	})
}

// step lets time pass for the running fetches.
func (r *rig) step(running int, after time.Duration) {
	r.t.Helper()
	r.awaitRunning(running)
	r.clock.Step(after)
}

// run returns the fetch of key, which begins next.
func (r *rig) run(key string) *run {
	r.t.Helper()
	f := r.next()
	if f.key != key {
		r.t.Fatalf("%s began, want %s", f.key, key)
	}
	return f
}

// none checks that no other fetch has begun.
func (r *rig) none() {
	r.t.Helper()
	if n := len(r.begun); n != 0 {
		r.t.Errorf("%d more fetches began", n)
	}
}

func wantRunning(t *testing.T, all ...*run) {
	t.Helper()
	for _, f := range all {
		assert.True(t, f.ctx.Err() == nil, "%s has lost what it had received", f.key)
	}
}

func awaitEnd(t *testing.T, f *run) {
	t.Helper()
	assert.Eventually(t, f.key+" ends", func(testing.TB) error { return unless(f.ctx.Err() != nil) })
}

// expect states the size of a fetch's content.
func expect(t *testing.T, f *run, total int64) {
	t.Helper()
	assert.NoError(t, f.Expect(total))
}

// TestSlowFetchesLeaveTheirSlots checks that fetches which receive little go on, and that others of every namespace
// do not wait for them.
func TestSlowFetchesLeaveTheirSlots(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("one", "a", "b")
	r.beginIn("two", "c", "d")
	all := r.began(4)
	r.beginIn("three", "e")
	r.waits("e", true)
	for _, f := range all {
		f.Received(1)
		f.Report("fetching " + f.key)
	}
	r.step(4, review)
	e := r.run("e")
	wantRunning(t, all["a"], all["b"], all["c"], all["d"], e)
	for _, f := range all {
		f.end <- nil
		assert.Eventually(t, f.key+" is fetched", func(testing.TB) error {
			outcome, err := r.Outcome(types.UID(f.key), f.key)
			return errors.Join(err, unless(outcome == download.Fetched))
		})
	}
}

// TestFastFetchKeepsItsSlot checks that a fetch keeps its slot for a whole turn while it receives enough. A fetch that
// has received everything keeps its slot until it ends.
func TestFastFetchKeepsItsSlot(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.Concurrency = 1
	r.beginIn("one", "fast")
	fast := r.run("fast")
	expect(t, fast, large-1)
	r.beginIn("two", "next")
	for range time.Minute/review - 1 {
		fast.Received(enough)
		r.step(1, review)
		r.awaitRunning(1)
		r.waits("next", true)
	}
	fast.Received(enough)
	r.step(1, review) // its turn is over
	next := r.run("next")
	expect(t, next, 3)
	next.Received(3)
	r.beginIn("three", "last")
	r.step(2, 10*review)
	r.awaitRunning(2)
	r.waits("last", true)
	wantRunning(t, fast, next)
	next.end <- nil
	r.run("last")
}

// TestLargeFetches checks that small contents do not wait for large ones, that the run of a large one without a slot ends
// and begins again once a slot is free, and that a content of unknown size counts as large.
func TestLargeFetches(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("one", "a", "b", "c")
	all := r.began(3)
	a := all["a"]
	expect(t, a, large)
	expect(t, all["b"], 0)
	expect(t, all["c"], large+1)
	r.beginIn("one", "d", "small")
	more := r.began(2)
	d, small := more["d"], more["small"]
	expect(t, small, large-1)
	if err := d.Expect(large); err == nil { // one has three of the large ones
		t.Error("a namespace has all slots")
	}
	awaitEnd(t, d)
	r.beginIn("two", "e")
	expect(t, r.run("e"), large)
	assert.Eventually(t, "d waits", func(testing.TB) error { return unless(strings.Contains(r.Progress("d"), "waiting")) })
	r.none()
	wantRunning(t, a, all["b"], all["c"], small)
	a.end <- errors.New("it failed")
	d = r.run("d")
	expect(t, d, large)
	d.end <- nil
	assert.Eventually(t, "d is fetched", func(testing.TB) error {
		outcome, err := r.Outcome("d", "d")
		return errors.Join(err, unless(outcome == download.Fetched))
	})
}

// TestManySlowFetchesOfOne checks that a namespace with many slow fetches has only its share of the slots in each lane,
// that its fetches keep what they have received as long as no other namespace needs their slots, and
// that the fetches of other namespaces neither wait for them nor lose their slots to them.
func TestManySlowFetchesOfOne(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	const share = download.DefaultConcurrency - 1
	for n := range 1000 {
		r.beginIn("many", types.UID(fmt.Sprint(n)))
	}
	inSlow := r.began(share)
	r.step(share, review)
	inQuick := r.began(share) // in the slots that the fetches of inSlow have left
	for range 3 {
		r.step(2*share, review)
	}
	r.awaitRunning(2 * share)
	r.beginIn("other", "x", "y", "z")
	for _, key := range []string{"x", "y", "z"} {
		r.run(key).end <- nil
	}
	r.none()
	for _, all := range []map[string]*run{inSlow, inQuick} {
		for _, f := range all {
			wantRunning(t, f)
		}
	}
	r.beginIn("other", "slow", "waits")
	other := r.run("slow")
	r.step(2*share+1, review)
	wantRunning(t, other, r.run("waits"))
}

// TestSlowSlotIsLostToAnother checks that the slowest fetch of the namespace with the most slow fetches loses its slot to
// a namespace without any, and begins again later. Fetches of namespaces with few slow fetches lose their slots only
// after a while.
func TestSlowSlotIsLostToAnother(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("many", "a", "b", "c")
	r.beginIn("few", "d")
	all := r.began(4)
	for n, key := range []string{"b", "a", "c"} {
		all[key].Received(int64(2 + n))
	}
	all["d"].Received(1)
	r.step(4, review)
	r.beginIn("other", "e")
	e := r.run("e")
	r.step(5, review)
	awaitEnd(t, all["b"]) // d is slower, of a namespace with one
	wantRunning(t, all["a"], all["c"], all["d"], e)
	all["c"].end <- nil
	b := r.run("b")
	r.beginIn("third", "f")
	f := r.run("f")
	r.step(5, review)
	awaitEnd(t, b)
	e.Received(1 << 10)
	f.Received(1 << 10)
	r.beginIn("fourth", "g")
	g := r.run("g")
	r.step(5, review)
	r.awaitRunning(5)
	wantRunning(t, all["a"], all["d"], e, f, g)
	r.step(5, time.Hour)
	awaitEnd(t, all["d"])
	r.awaitRunning(4)
	wantRunning(t, all["a"], e, f, g)
}

// TestLostSlotIsKeptLonger checks that a slow fetch which begins again keeps its slot twice as long as before, so that
// it completes in the end although others keep coming.
func TestLostSlotIsKeptLonger(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.Concurrency = 1
	const turn = 15 * time.Minute
	r.beginIn("slow", "a")
	for losses := range 4 {
		a := r.run("a")
		r.step(1, review)
		other := types.UID(fmt.Sprint(losses))
		r.beginIn(string(other), other)
		o := r.run(string(other))
		o.Received(enough)
		r.step(2, turn<<losses-2*review)
		r.awaitRunning(2)
		wantRunning(t, a, o)
		o.Received(1)
		r.step(2, 2*review)
		awaitEnd(t, a)
		r.awaitRunning(1)
		o.end <- nil
	}
}

// TestNamespacesTakeTurns checks that the next slot goes to the namespace that has waited longest, even if another
// namespace asked first for many fetches.
func TestNamespacesTakeTurns(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.Concurrency = 1
	r.beginIn("many", "m1", "m2", "m3", "m4")
	r.beginIn("few", "f1", "f2")
	r.beginIn("one", "o1")
	for _, key := range []string{"m1", "m2", "f1", "o1", "m3", "f2", "m4"} {
		r.run(key).end <- nil
	}
}

// TestNewcomersWait checks that a new namespace does not overtake one that waits, not even by joining a fetch that was
// asked for earlier.
func TestNewcomersWait(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.Concurrency = 1
	r.beginIn("many", "m1", "m2", "m3", "m4", "m5")
	running := r.run("m1")
	r.beginIn("waits", "w1", "w2")
	for n, want := range []string{"m2", "w1", "m5", "m3", "new1", "w2"} {
		r.namespace = fmt.Sprint("new", n)
		r.begin(types.UID(r.namespace), r.namespace)
		r.begin(types.UID("joins"+r.namespace), "m5")
		running.end <- nil
		running = r.run(want)
	}
}

// TestFetchOfSeveralNamespaces checks that a fetch which several namespaces wait for begins at the turn of any of them,
// not only of the one that asked for it first.
func TestFetchOfSeveralNamespaces(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("many", "a", "b", "c", "d", "shared")
	r.began(3)
	r.namespace = "other"
	r.begin("o", "shared")
	r.run("shared")
	r.none()
}

// TestLongestRun checks that a fetch ends after a day, and says so.
func TestLongestRun(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("one", "a")
	a := r.run("a")
	r.step(1, 24*time.Hour)
	awaitEnd(t, a)
	assert.Eventually(t, "it says why", func(testing.TB) error {
		_, err := r.Outcome("a", "a")
		return unless(err != nil && strings.HasSuffix(err.Error(), "not complete after 24h0m0s"))
	})
}

// TestAbandonWaitingFetch checks that a fetch without a slot ends at once, and that its slot is not counted.
func TestAbandonWaitingFetch(t *testing.T) {
	t.Parallel()
	r := newLanes(t)
	r.beginIn("one", "a", "b", "c", "d")
	all := r.began(3)
	assert.NoError(t, r.Abandon(t.Context(), "d"))
	r.beginIn("one", "e")
	all["a"].end <- nil
	r.run("e")
	r.none()
}
