// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// secondRestart is how long the second restart in a row waits. The first is at once, and each later one waits twice
	// as long as the one before, up to MaxRestartWait.
	secondRestart = 100 * time.Millisecond
	// MaxRestartWait is the longest wait between two starts of a program.
	MaxRestartWait = 5 * time.Second
	// stableRun is how long a program has to run for its next restart to be the first in a row again.
	stableRun = 2 * time.Second
)

// ErrEndsSoon means that a program has ended soon after its last starts, and is not started again yet.
var ErrEndsSoon = errors.New("it ended soon after each of its last starts")

// Starts bounds how often a program that ends soon is started again, whoever asks for it.
type Starts struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	last map[string]lastStart
}

// lastStart is the last start of a program, and how long after it the next has to wait.
type lastStart struct {
	at   time.Time
	wait time.Duration
}

// NewStarts returns Starts without any program.
func NewStarts(c clock.PassiveClock) *Starts {
	return &Starts{clock: c, last: map[string]lastStart{}}
}

// Take counts a start of the named program, or returns an ErrEndsSoon if the program must wait. The text of
// the error is the same each time, so that a status or log that has it does not change with the time left.
// Programs that run stably are forgotten.
func (s *Starts) Take(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.last, func(_ string, l lastStart) bool { return now.Sub(l.at) >= l.wait+stableRun })
	last, isRestart := s.last[name]
	if left := last.wait - now.Sub(last.at); isRestart && left > 0 {
		return fmt.Errorf("%w, and is started again within %s", ErrEndsSoon, MaxRestartWait)
	}
	next := lastStart{at: now}
	if isRestart {
		next.wait = min(max(2*last.wait, secondRestart), MaxRestartWait)
	}
	s.last[name] = next
	return nil
}
