// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

// recordingObserver records the events in order.
type recordingObserver struct {
	mu    sync.Mutex
	lines []string
}

func (d *recordingObserver) record(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *recordingObserver) Ready(name string, _ time.Duration) { d.record(name + " ready") }
func (d *recordingObserver) Waiting(name string, after time.Duration, cause error) {
	d.record(fmt.Sprint(name, " waits after ", after, ": ", cause))
}
func (d *recordingObserver) Stopping()                               { d.record("stopping") }
func (d *recordingObserver) Stopped(name string, _ time.Duration)    { d.record(name + " stopped") }
func (d *recordingObserver) LeftBehind(name string, _ time.Duration) { d.record(name + " left behind") }

func (d *recordingObserver) assertRecords(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.True(t, slices.Equal(d.lines, want), "got  %s\nwant %s", strings.Join(d.lines, ", "), strings.Join(want, ", "))
}

func newRunner(d *recordingObserver) *Runner {
	return &Runner{Clock: clock.RealClock{}, Observer: d}
}

// newTestComponent runs until its context ends.
func newTestComponent(name string, d *recordingObserver) Component {
	return Component{
		Name: name, StopBy: time.Hour, Within: time.Hour,
		Run: func(ctx context.Context) error {
			d.record(name + " runs")
			<-ctx.Done()
			d.record(name + " ends")
			return ctx.Err()
		},
		Ready: func(context.Context) error { return nil },
	}
}

func returnNil() error { return nil }

func TestStartAndStopOrder(t *testing.T) {
	d := &recordingObserver{}
	ctx, cancel := context.WithCancel(t.Context())
	step := Component{Name: "step", Within: time.Hour, Ready: func(context.Context) error { d.record("step done"); return nil }}
	first, second := newTestComponent("first", d), newTestComponent("second", d)
	first.Ready, second.Ready = waitForRecord(d, "first runs"), waitForRecord(d, "second runs")
	err := newRunner(d).Run(ctx, []Component{first, step, second}, func() error {
		d.record("up")
		cancel()
		return nil
	})
	assert.ReportError(t, err)
	d.assertRecords(
		t, "first runs", "first ready", "step done", "step ready", "second runs", "second ready", "up",
		"stopping", "second ends", "second stopped", "first ends", "first stopped",
	)
}

func waitForRecord(d *recordingObserver, line string) func(context.Context) error {
	return func(ctx context.Context) error {
		return assert.Poll(ctx, line, func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			return assert.ErrorUnless(slices.Contains(d.lines, line), "it is not recorded")
		})
	}
}

func TestFailedComponentStopsAll(t *testing.T) {
	broken := errors.New("broken")
	for name, tc := range map[string]struct {
		end, up error // of the component, and of the function that is called once all are up
		want    string
	}{
		"with an error":    {broken, nil, "second failed: broken"},
		"without an error": {nil, nil, "second ended unexpectedly"},
		"in the callback":  {nil, broken, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &recordingObserver{}
			isUp := make(chan struct{})
			dying := newTestComponent("second", d)
			if tc.up == nil {
				dying = Component{Name: "second", Run: func(context.Context) error { <-isUp; return tc.end }}
			}
			err := newRunner(d).Run(t.Context(), []Component{newTestComponent("first", d), dying}, func() error {
				close(isUp)
				return tc.up
			})
			assert.True(t, err != nil && err.Error() == tc.want && errors.Is(err, broken) == (tc.end != nil || tc.up != nil), "got %v, want %s", err, tc.want)
			assert.Equal(t, "ends with", d.lines[len(d.lines)-1], "first stopped")
		})
	}
}

func TestFailureDuringStartIsReported(t *testing.T) {
	d := &recordingObserver{}
	dying := Component{
		Name: "first", Within: time.Hour, StopBy: time.Hour,
		Run:   func(context.Context) error { return errors.New("port in use") },
		Ready: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}
	err := newRunner(d).Run(t.Context(), []Component{dying, newTestComponent("second", d)}, returnNil)
	assert.True(t, err != nil && err.Error() == "first failed: port in use", "got %v", err)
	d.assertRecords(t, "stopping", "first stopped")
}

func TestComponentNotReadyInTime(t *testing.T) {
	d := &recordingObserver{}
	slow := newTestComponent("slow", d)
	slow.Within = 10 * time.Millisecond
	slow.Ready = func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("connection refused")
	}
	err := newRunner(d).Run(t.Context(), []Component{slow}, returnNil)
	assert.True(t, err != nil && err.Error() == "slow was not ready within 10ms: connection refused", "got %v", err)
}

// TestWaitIsShownOnce checks that a part which is not ready after a while is shown once, with the cause.
func TestWaitIsShownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &recordingObserver{}
		ctx, cancel := context.WithCancel(t.Context())
		step := func(name string, takes time.Duration) Component {
			return Component{
				Name: name, Within: time.Hour, Cause: func() error { return errors.New("connection refused") },
				Ready: func(context.Context) error { time.Sleep(takes); return nil },
			}
		}
		err := newRunner(d).Run(ctx, []Component{step("quick", noticeDelay-1), step("slow", time.Minute)}, func() error { cancel(); return nil })
		assert.NoError(t, err)
		d.assertRecords(t, "quick ready", "slow waits after 10s: connection refused", "slow ready", "stopping")
	})
}

func TestStopDuringStartIsNoError(t *testing.T) {
	d := &recordingObserver{}
	ctx, cancel := context.WithCancel(t.Context())
	waits := newTestComponent("waits", d)
	waits.Ready = func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return errors.New("not ready yet")
	}
	err := newRunner(d).Run(ctx, []Component{waits, newTestComponent("never", d)}, returnNil)
	assert.True(t, err == nil, "got %v", err)
	assert.True(t, !slices.Contains(d.lines, "never runs"), "went on starting")
}

// TestHungComponentIsLeftBehind checks that a part that hangs does not prevent the
// parts started before it from stopping cleanly.
func TestHungComponentIsLeftBehind(t *testing.T) {
	d := &recordingObserver{}
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	hangs := Component{Name: "hangs", StopBy: 8 * time.Second, Run: func(context.Context) error { <-release; return nil }}
	below := newTestComponent("below", d)
	below.Run = func(ctx context.Context) error { <-ctx.Done(); return nil }
	below.Ready = nil // only the stop waits
	ended := make(chan error, 1)
	go func() {
		r := &Runner{Clock: clock, Observer: d}
		ended <- r.Run(ctx, []Component{below, hangs}, func() error { cancel(); return nil })
	}()
	assert.Eventually(t, "the stop waits", func(testing.TB) error {
		return assert.ErrorUnless(clock.HasWaiters(), "it does not")
	})
	clock.Step(7 * time.Second)
	d.assertRecords(t, "below ready", "hangs ready", "stopping")
	clock.Step(time.Second)
	assert.NoError(t, <-ended)
	d.assertRecords(t, "below ready", "hangs ready", "stopping", "hangs left behind", "below stopped")
}
