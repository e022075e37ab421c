// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// processClock is the clock of one process. Its timers fire when the scheduler decides, and
// only while a goroutine waits for them, so that no select has two ready cases.
type processClock struct {
	process *process
	// behind is how much the clock is behind, as after a suspension of the virtual machine.
	behind atomic.Int64 // nanoseconds

	mu     sync.Mutex
	timers []*timer
}

var (
	_ clock.WithTicker           = (*processClock)(nil)
	_ clock.WithDelayedExecution = (*processClock)(nil)
)

func (c *processClock) Now() time.Time                         { return time.Now().Add(-time.Duration(c.behind.Load())) }
func (c *processClock) Since(t time.Time) time.Duration        { return c.Now().Sub(t) }
func (c *processClock) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }
func (c *processClock) Sleep(d time.Duration)                  { <-c.After(d) }

// boot is the time since the host was started.
func (c *processClock) boot() time.Duration { return c.Since(time.Time{}.AddDate(1900, 0, 0)) }

func (c *processClock) NewTimer(d time.Duration) clock.Timer { return c.add(d, 0, nil) }

func (c *processClock) NewTicker(d time.Duration) clock.Ticker {
	return ticker{c.add(d, d, nil)}
}

// Tick implements clock.WithTicker.
func (c *processClock) Tick(d time.Duration) <-chan time.Time { return c.add(d, d, nil).out }

// AfterFunc implements clock.WithDelayedExecution.
func (c *processClock) AfterFunc(d time.Duration, f func()) clock.Timer { return c.add(d, 0, f) }

func (c *processClock) add(d, period time.Duration, f func()) *timer {
	t := &timer{clock: c, period: period, run: f, out: make(chan time.Time), name: callerName()}
	t.arm(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = append(c.timers, t)
	return t
}

// callerName returns the name of the calling function of Drover.
func callerName() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	for {
		frame, more := frames.Next()
		if name := frame.Function[strings.LastIndex(frame.Function, "/")+1:]; !strings.HasPrefix(name, "schedules.") || !more {
			return name
		}
	}
}

// due returns the timers that are due, and the time of the next one.
func (c *processClock) due(now time.Time) (due []*operation, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := c.timers[:0]
	for _, t := range c.timers {
		at, isSet := t.state()
		if !isSet {
			continue
		}
		live = append(live, t)
		at = at.Add(time.Duration(c.behind.Load()))
		switch {
		case !at.After(now):
			due = addTimer(due, fmt.Sprintf("%s timer of %s", c.process.name, t.name), t)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	c.timers = live
	return due, next
}

// addTimer adds a timer that is due. Timers with the same name fire together, because there is
// no order of them that is the same in each run.
func addTimer(due []*operation, name string, t *timer) []*operation {
	n := slices.IndexFunc(due, func(o *operation) bool { return o.name == name })
	if n < 0 {
		return append(due, &operation{name: name, owner: t.clock.process, run: t.fire})
	}
	first := due[n].run
	due[n].run = func() bool {
		firstFired, fired := first(), t.fire()
		return firstFired || fired
	}
	return due
}

// timer is a timer or a ticker of a process's clock.
type timer struct {
	clock  *processClock
	name   string
	period time.Duration
	out    chan time.Time
	run    func()

	mu sync.Mutex
	at time.Time // zero if it is stopped or has fired
}

func (t *timer) state() (at time.Time, isSet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at, !t.at.IsZero()
}

func (t *timer) arm(d time.Duration) (wasSet bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wasSet, t.at = !t.at.IsZero(), t.clock.Now().Add(max(d, 1))
	return wasSet
}

// fire fires the timer if a goroutine waits for it.
func (t *timer) fire() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if t.run != nil {
		go t.run()
	} else {
		select {
		case t.out <- now:
		default:
			return false
		}
	}
	if t.at = (time.Time{}); t.period > 0 {
		t.at = now.Add(t.period)
	}
	return true
}

// C implements clock.Timer.
func (t *timer) C() <-chan time.Time { return t.out }

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	wasSet := !t.at.IsZero()
	t.at = time.Time{}
	return wasSet
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	wasSet := t.arm(d)
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	if !slices.Contains(t.clock.timers, t) {
		t.clock.timers = append(t.clock.timers, t)
	}
	return wasSet
}

// ticker is a timer as a clock.Ticker.
type ticker struct{ *timer }

func (t ticker) Stop() { t.timer.Stop() }
