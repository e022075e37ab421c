// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/test/assert"
)

// rig is a Tracker whose fetches end when the test decides.
type rig struct {
	*download.Tracker
	t        *testing.T
	clock    *testingclock.FakeClock
	notified chan types.UID
	begun    chan *run
	// namespace of the servers that wait from now on.
	namespace string
}

// run is one fetch.
type run struct {
	*download.Fetch
	key string
	ctx context.Context
	end chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, clock: testingclock.NewFakeClock(time.Now()), notified: make(chan types.UID, 100), begun: make(chan *run, 100), namespace: "default"}
	r.Tracker = &download.Tracker{Clock: r.clock, Stall: time.Minute, Notify: func(uids ...types.UID) {
		for _, uid := range uids {
			r.notified <- uid
		}
	}}
	t.Cleanup(func() { assert.NoError(t, r.Close(context.WithoutCancel(t.Context()))) })
	return r
}

// begin registers a server as waiting for key.
func (r *rig) begin(uid types.UID, key string) {
	r.t.Helper()
	spec := driver.ServerSpec{Target: driver.Target{UID: uid}, Namespace: r.namespace, Name: "vm-" + string(uid)}
	r.StartFetch(r.t.Context(), spec, key, "fetching "+key, func(ctx context.Context, f *download.Fetch) error {
		this := &run{f, key, ctx, make(chan error)}
		r.begun <- this
		select {
		case err := <-this.end:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// next returns the fetch that began next.
func (r *rig) next() *run {
	r.t.Helper()
	return assert.Receive(r.t, "a fetch begins", r.begun)
}

func (r *rig) want(uid types.UID, key string, want download.Outcome) {
	r.t.Helper()
	if got, err := r.Outcome(uid, key); got != want || err != nil {
		r.t.Errorf("%s of %s: outcome %v and error %v, want %v", key, uid, got, err, want)
	}
}

// TestSharedFetch checks that servers waiting for one thing share a fetch, and that all
// are notified of its end.
func TestSharedFetch(t *testing.T) {
	r := newRig(t)
	r.want("a", "x", download.None)
	r.begin("a", "x")
	r.begin("b", "x")
	f := r.next()
	r.want("a", "x", download.Running)
	s := r.PendingServer("b")
	assert.True(t, s.State == driver.StatePending && s.Progress == "fetching x" && s.Name == "vm-b" && s.Namespace == "default", "b is %+v", s)
	all, one := r.PendingServers(), r.PendingServers("b", "c")
	assert.True(t, len(all) == 2 && len(one) == 1 && one[0].UID == "b", "pending are %v, and of b and c %v", all, one)
	f.end <- nil
	notified := map[types.UID]bool{assert.Receive(t, "one is notified", r.notified): true, assert.Receive(t, "another is notified", r.notified): true}
	assert.True(t, notified["a"] && notified["b"] && len(r.begun) == 0, "notified %v, and %d more fetches began", notified, len(r.begun))
	r.want("a", "x", download.Fetched)
	r.want("a", "x", download.Fetched)
	assert.Equal(t, "its status", r.Progress("a"), "")
	r.ReleaseExcept("a")
	r.want("a", "x", download.None)
	r.want("b", "x", download.Fetched)
}

// TestFailureReportedOnce checks that a failure is returned once, and shown until the
// next try. It is ErrRetry, whatever failed.
func TestFailureReportedOnce(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	r.next().end <- driver.Errorf(driver.ErrUnavailable, "no route")
	assert.Receive(t, "it is notified", r.notified)
	_, err := r.Outcome("a", "x")
	if !errors.Is(err, driver.ErrRetry) || errors.Is(err, driver.ErrUnavailable) || err.Error() != "no route" || driver.ReasonOf(err) != driver.ReasonImageUnavailable {
		t.Errorf("error %v", err)
	}
	r.want("a", "x", download.None)
	shown := r.PendingServer("a").Err
	assert.True(t, shown != nil && shown.Error() == "no route", "shown is %v", shown)
	r.begin("a", "x")
	r.next()
	r.want("a", "x", download.Running)
	assert.ErrorIs(t, "shown is still", r.PendingServer("a").Err, nil)
}

// TestLastClaimReleased checks that a fetch is cancelled with the last claim on it, and
// that a later server begins another.
func TestLastClaimReleased(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	x := r.next()
	r.begin("b", "x")
	r.begin("a", "y")
	y := r.next()
	if r.ReleaseExcept("a", "y"); x.ctx.Err() != nil {
		t.Error("x was cancelled while b waited for it")
	}
	r.want("a", "x", download.None)
	r.want("a", "y", download.Running)
	err := r.Abandon(t.Context(), "b")
	assert.True(t, err == nil && x.ctx.Err() != nil && y.ctx.Err() == nil, "error %v; x: %v, y: %v", err, x.ctx.Err(), y.ctx.Err())
	r.begin("b", "x")
	r.next()
	r.want("b", "x", download.Running)
}

// TestAbandonHangingFetch uses a fetch that does not end.
func TestAbandonHangingFetch(t *testing.T) {
	r := newRig(t)
	hangs := make(chan struct{})
	r.StartFetch(t.Context(), driver.ServerSpec{Target: driver.Target{UID: "a"}}, "x", "fetching x", func(context.Context, *download.Fetch) error {
		<-hangs
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, "Abandon", r.Abandon(ctx, "a"), driver.ErrRetry, "fetching x")
	close(hangs)
}

// TestClose checks that all fetches end with their Tracker.
func TestClose(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	r.begin("b", "y")
	x, y := r.next(), r.next()
	err := r.Close(t.Context())
	assert.True(t, err == nil && x.ctx.Err() != nil && y.ctx.Err() != nil, "error %v; x: %v, y: %v", err, x.ctx.Err(), y.ctx.Err())
}

// TestFetchOutlivesCaller checks that a fetch continues after the call that began it.
func TestFetchOutlivesCaller(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r.StartFetch(ctx, driver.ServerSpec{Target: driver.Target{UID: "a"}}, "x", "fetching x", func(ctx context.Context, _ *download.Fetch) error {
		cancel()
		done <- ctx.Err()
		return nil
	})
	assert.ReportError(t, assert.Receive(t, "the fetch ends", done))
}

// TestStall checks that a fetch may be slow, but not without progress.
func TestStall(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	f := r.next()
	assert.Eventually(t, "it is watched", func(testing.TB) error { return unless(r.clock.HasWaiters()) })
	f.Report("fetching x: 1%")
	uid := assert.Receive(t, "progress is notified", r.notified)
	assert.True(t, uid == "a" && r.Progress("a") == "fetching x: 1%", "notified %s, and the status is %q", uid, r.Progress("a"))
	assert.Eventually(t, "it is cancelled", func(testing.TB) error {
		r.clock.Step(time.Minute)
		return unless(f.ctx.Err() != nil)
	})
	assert.Receive(t, "its end is notified", r.notified)
	_, err := r.Outcome("a", "x")
	assert.True(t, err != nil && err.Error() == "fetching x: 1%: no progress for 1m0s", "error %v", err)
}

// TestProgressNotificationRate checks that notifications are limited in rate, and need
// a change.
func TestProgressNotificationRate(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	f := r.next()
	for step, c := range []struct {
		after    time.Duration
		status   string
		notified int
	}{
		{0, "1%", 1}, {time.Second, "2%", 0}, {time.Second, "2%", 0}, {0, "3%", 1}, {time.Minute / 2, "3%", 0},
	} {
		r.clock.Step(c.after)
		f.Report(c.status)
		assert.True(t, r.Progress("a") == c.status && len(r.notified) == c.notified,
			"step %d: the status is %q and was notified %d times, want %q and %d", step, r.Progress("a"), len(r.notified), c.status, c.notified)
		for len(r.notified) > 0 {
			<-r.notified
		}
	}
}

func unless(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("not yet")
}

// beginIn registers servers of a namespace as waiting, each for a key equal to its UID.
func (r *rig) beginIn(namespace string, uids ...types.UID) {
	r.t.Helper()
	for _, uid := range uids {
		r.namespace = namespace
		r.begin(uid, string(uid))
	}
}

// began returns the fetches that began, by key; there must be n.
func (r *rig) began(n int) map[string]*run {
	r.t.Helper()
	all := map[string]*run{}
	for range n {
		f := r.next()
		all[f.key] = f
	}
	if len(r.begun) != 0 {
		r.t.Errorf("more than %d began", n)
	}
	return all
}

func (r *rig) waits(uid types.UID, want bool) {
	r.t.Helper()
	if status := r.Progress(uid); strings.HasSuffix(status, ": waiting for other fetches to end") != want || !strings.HasPrefix(status, "fetching "+string(uid)) {
		r.t.Errorf("the status of %s is %q, want it to wait: %v", uid, status, want)
	}
}

// TestTurns checks that only as many fetches run as are allowed, and that the others show
// that they wait and begin in the order of arrival.
func TestTurns(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 4
	r.beginIn("one", "a", "b")
	r.beginIn("two", "c", "d")
	r.beginIn("three", "e", "f")
	running := r.began(4)
	for _, uid := range []types.UID{"a", "b", "c", "d", "e", "f"} {
		r.waits(uid, uid >= "e")
		r.want(uid, string(uid), 1)
	}
	running["b"].end <- nil
	assert.Equal(t, "began", r.next().key, "e")
	r.waits("e", false)
	r.waits("f", true)
	running["c"].end <- errors.New("no")
	assert.Equal(t, "began", r.next().key, "f")
}

// TestTurnGivenUp checks that an abandoned fetch gets no turn.
func TestTurnGivenUp(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 1
	r.beginIn("one", "a", "b", "c")
	a := r.began(1)["a"]
	assert.ReportError(t, r.Abandon(t.Context(), "b"))
	a.end <- nil
	assert.Equal(t, "began", r.next().key, "c")
}

// TestTurnsOfOne checks that no namespace has all slots.
func TestTurnsOfOne(t *testing.T) {
	r := newRig(t)
	r.Concurrency = 4
	r.beginIn("one", "a", "b", "c", "d", "e")
	r.beginIn("two", "f", "g")
	running := r.began(4)
	keys := make([]string, 0, len(running))
	for key := range running {
		keys = append(keys, key)
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"a", "b", "c", "f"}) {
		t.Errorf("%q began", keys)
	}
	running["f"].end <- nil
	assert.Equal(t, "began", r.next().key, "g")
}

// TestFinal checks that a failure that only another spec can fix is reported as that.
func TestFinal(t *testing.T) {
	r := newRig(t)
	r.begin("a", "x")
	r.next().end <- driver.Errorf(driver.ErrInvalid, "too large")
	assert.Receive(t, "it is notified", r.notified)
	if _, err := r.Outcome("a", "x"); !errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrRetry) || err.Error() != "too large" || driver.ReasonOf(err) != "" {
		t.Errorf("error %v", err)
	}
}

// TestAddTo checks that a server is found while its fetch becomes a server during the list,
// that a server which exists is found once, with the fetch that it waits for, and that a
// released one neither hides nor has the fetch of the next.
func TestAddTo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, uid := range []types.UID{"becoming", "existing", "released"} {
		r.begin(uid, "key")
	}
	list := func() ([]driver.Server, error) {
		r.ReleaseExcept("becoming")
		return []driver.Server{{UID: "existing", ID: "1"}, {UID: "released", ID: "2", Retained: true}}, nil
	}
	all, err := r.AddTo(list)
	assert.NoError(t, err)
	got := map[string]string{}
	for _, s := range all {
		got[string(s.UID)+s.ID] = s.Progress
	}
	const progress = "fetching key"
	want := map[string]string{"becoming": progress, "existing1": progress, "released2": "", "released": progress}
	assert.True(t, maps.Equal(got, want) && len(all) == len(want), "got %v, want %v", got, want)
	failed := errors.New("failed")
	all, err = r.AddTo(func() ([]driver.Server, error) { return nil, failed })
	assert.True(t, errors.Is(err, failed) && len(all) == 0, "got %v, %v, want the error alone", all, err)
}
