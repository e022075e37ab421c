// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newSteppedDriver returns a driver whose clock the test moves.
func newSteppedDriver(t *testing.T, o fake.Options) (*fake.Driver, *fake.Memory, *testclock.FakeClock) {
	t.Helper()
	c := testclock.NewFakeClock(start)
	o.ClusterID, o.Clock, o.Memory = cluster, c, fake.NewMemory(c)
	return faketest.OpenDriver(t, o), o.Memory, c
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o    fake.Options
		want string
	}{
		"no cluster":      {fake.Options{}, "cluster id"},
		"boots backwards": {fake.Options{ClusterID: cluster, BootTime: -1}, "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorSays(t, "New", assert.ErrorOf(fake.New(c.o)), c.want)
		})
	}
}

func TestInvalidImage(t *testing.T) {
	t.Parallel()
	d, memory, _ := newSteppedDriver(t, fake.Options{})
	spec := specOf("bad")
	spec.Image.Source = "a b"
	assert.ErrorIs(t, "Ensure", assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrInvalid, `image.source is "a b"`)
	all := memory.Records()
	assert.True(t, len(all) == 0, "the engine has %+v, want no server", all)
}

// TestTransitionsByTime checks that servers reach the end of their boot and of their
// shutdown without a call, and that Watch reports it.
func TestTransitionsByTime(t *testing.T) {
	t.Parallel()
	d, _, c := newSteppedDriver(t, fake.Options{BootTime: 10 * time.Second, ShutdownTime: 5 * time.Second})
	early := specOf("early")
	ensureServer(t, d, early) // Its boot began before the Watch.
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	c.Step(9 * time.Second)
	wantState(t, d, "early", driver.StateStarting)
	c.Step(time.Second)
	wantState(t, d, "early", driver.StateRunning)
	wantEvent(t, events, "early")

	late := specOf("late")
	ensureServer(t, d, late)
	wantEvent(t, events, "late")
	stepUntilEvent(t, c, events, "late", time.Second, 10)
	wantState(t, d, "late", driver.StateRunning)

	off := late
	off.Power, off.StopBy = driver.PowerOff, c.Now().Add(time.Hour)
	ensureServer(t, d, off)
	wantEvent(t, events, "late")
	wantState(t, d, "late", driver.StateStopping)
	stepUntilEvent(t, c, events, "late", time.Second, 5)
	s := wantState(t, d, "late", driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Code == 0, "it ended with %+v, want code 0", s.Exit)
}

func wantState(t *testing.T, d *fake.Driver, uid types.UID, want driver.State) driver.Server {
	t.Helper()
	servers, err := d.List(t.Context(), uid)
	assert.Require(t, err == nil && len(servers) == 1 && servers[0].State == want, "List: got %+v, %v, want it %s", servers, err, want)
	return servers[0]
}

func wantEvent(t *testing.T, events <-chan types.UID, want types.UID) {
	t.Helper()
	got := assert.Receive(t, "Watch reports "+string(want), events)
	assert.Require(t, got == want, "Watch reported %q, want %q", got, want)
}

// stepUntilEvent moves the clock n steps and expects the event at the last.
func stepUntilEvent(t *testing.T, c *testclock.FakeClock, events <-chan types.UID, want types.UID, step time.Duration, n int) {
	t.Helper()
	for range n - 1 {
		c.Step(step)
	}
	select {
	case got := <-events:
		t.Fatalf("Watch reported %s too early", got)
	default:
	}
	c.Step(step)
	wantEvent(t, events, want)
}

// TestSlowWatcher checks that a slow reader loses no event and blocks no other.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	d, _, _ := newSteppedDriver(t, fake.Options{})
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)
	const n = 2000
	missing := map[types.UID]bool{}
	for i := range n {
		uid := types.UID(fmt.Sprintf("uid-%d", i))
		missing[uid] = true
		ensureServer(t, d, specOf(uid))
	}
	for len(missing) > 0 {
		delete(missing, assert.Receive(t, fmt.Sprintf("Watch reports the other %d servers", len(missing)), events))
	}
}

// TestWatchIgnoresOtherClusters checks that another cluster's changes are not reported.
func TestWatchIgnoresOtherClusters(t *testing.T) {
	t.Parallel()
	memory := fake.NewMemory(clock.RealClock{})
	ours := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Memory: memory})
	theirs := faketest.OpenDriver(t, fake.Options{ClusterID: "cluster-2", Memory: memory})
	events, err := ours.Watch(t.Context())
	assert.NoError(t, err)
	ensureServer(t, theirs, specOf("theirs"))
	ensureServer(t, ours, specOf("ours"))
	wantEvent(t, events, "ours")
}

// TestIdleUsage checks that a cluster in which nothing happens shows no change.
func TestIdleUsage(t *testing.T) {
	t.Parallel()
	d, _, c := newSteppedDriver(t, fake.Options{})
	var uids []types.UID
	for i := range 100 {
		uids = append(uids, types.UID(fmt.Sprintf("uid-%d", i)))
		ensureServer(t, d, specOf(uids[i]))
	}
	for range 5 {
		c.Step(30 * time.Second)
		samples, err := d.Usage(t.Context(), uids...)
		assert.Require(t, err == nil && len(samples) == len(uids), "Usage: got %d samples, %v, want %d", len(samples), err, len(uids))
		for _, u := range samples {
			assert.Require(t, u.CPU == 0 && u.MemoryBytes == 1e9 && u.At.Equal(c.Now()), "got %+v, want no CPU and a quarter of the memory", u)
		}
	}
}

// TestLoadChanges checks that the counter follows the load and never decreases.
func TestLoadChanges(t *testing.T) {
	t.Parallel()
	d, memory, c := newSteppedDriver(t, fake.Options{})
	spec := specOf("busy") // Of 2 CPUs.
	run := ensureServer(t, d, spec).Run
	cpu := func() time.Duration {
		t.Helper()
		samples, err := d.Usage(t.Context(), "busy", "busy")
		assert.Require(t, err == nil && len(samples) == 1 && samples[0].Run == run, "Usage: got %+v, %v, want one sample of %s", samples, err, run)
		return samples[0].CPU
	}
	load := func(l float64) {
		t.Helper()
		assert.NoError(t, memory.Edit("busy", func(r *fake.Record) { r.Load = l }))
	}
	total := time.Duration(0)
	for name, step := range []struct {
		load float64
		want time.Duration
	}{{0, 0}, {0.5, 10 * time.Second}, {1, 20 * time.Second}, {0, 0}, {0.25, 5 * time.Second}} {
		cpu()
		load(step.load)
		c.Step(10 * time.Second)
		if total += step.want; cpu() != total {
			t.Errorf("step %d: the counter is at %v, want %v", name, cpu(), total)
		}
	}
	frozen := spec
	frozen.Power = driver.PowerPaused
	load(1)
	ensureServer(t, d, frozen)
	c.Step(time.Minute)
	assert.Equal(t, fmt.Sprintf("paused the counter went from %v to", total), cpu(), total)
}

func TestMemoryRejectsInvalidEdits(t *testing.T) {
	t.Parallel()
	memory := fake.NewMemory(clock.RealClock{})
	assert.True(t, memory.Edit("../x", func(*fake.Record) {}) != nil, "a bad UID was accepted")
	assert.True(t, memory.Edit("x", func(r *fake.Record) { r.State = "Sleeping" }) != nil, "a bad state was accepted")
	n := len(memory.Records())
	assert.True(t, n == 0, "there are %d servers, want none", n)
}

func BenchmarkList10000(b *testing.B) {
	memory := fake.NewMemory(clock.RealClock{})
	d, err := fake.New(fake.Options{ClusterID: cluster, Memory: memory})
	assert.NoError(b, err)
	for i := range 10000 {
		assert.NoError(b, assert.ErrorOf(d.Ensure(b.Context(), specOf(types.UID(fmt.Sprintf("uid-%d", i))))))
	}
	for b.Loop() {
		if servers, err := d.List(b.Context()); err != nil || len(servers) != 10000 {
			b.Fatal(len(servers), err)
		}
	}
}

// TestHalfClosedPort checks that a port ends a connection whose client sends no more, after it has sent all.
func TestHalfClosedPort(t *testing.T) {
	t.Parallel()
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: t.TempDir()})
	spec := specOf(uuid.NewUUID())
	ensureServer(t, d, spec)
	conn, err := d.Dial(t.Context(), spec.UID, 80)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	half, ok := conn.(interface{ CloseWrite() error })
	assert.Require(t, ok, "%T has no half to close", conn)
	received := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(conn)
		received <- string(text)
	}()
	_, err = io.WriteString(conn, "hello")
	assert.NoError(t, errors.Join(err, half.CloseWrite()))
	assert.Equal(t, "received", assert.Receive(t, "the end", received), "hello")
}

// TestManyStreams opens a thousand streams of one server, which all get the same output and
// leave nothing behind.
func TestManyStreams(t *testing.T) { //nolint:paralleltest // it counts the goroutines of the process
	const count = 1000
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: t.TempDir()})
	uid := uuid.NewUUID()
	assert.NoError(t, faketest.EnsureWithEpoch(t, d, uid, 1))
	before := runtime.NumGoroutine()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var ready, shown, all sync.WaitGroup
	ready.Add(count)
	shown.Add(count)
	for range count {
		all.Go(func() {
			c, err := d.Console(ctx, uid)
			ready.Done()
			if err != nil {
				t.Error(err)
				shown.Done()
				return
			}
			lines := bufio.NewReader(c)
			for line := ""; err == nil && line != "hello\n"; {
				line, err = lines.ReadString('\n')
			}
			shown.Done()
			_, failed := io.ReadAll(lines)
			assert.True(t, err == nil && errors.Is(failed, context.Canceled), "it ended with %v and %v", err, failed)
		})
	}
	ready.Wait()
	assert.NoError(t, assert.ErrorOf(d.Exec(t.Context(), uid, terminal.Command{Args: []string{"log", "hello"}})))
	shown.Wait()
	leave()
	all.Wait()
	assert.Eventually(t, "nothing is left", func(testing.TB) error {
		n := runtime.NumGoroutine()
		return assert.ErrorUnless(n <= before+5, "there are %d goroutines, before there were %d", n, before)
	})
}
