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
	// minRestartWait is the wait before the second restart in a row. The first restart does not wait. The wait doubles
	// with each further restart, up to MaxRestartWait.
	minRestartWait = 100 * time.Millisecond
	// MaxRestartWait is the longest wait between two starts of a program.
	MaxRestartWait = 5 * time.Second
	// stableRun is how long a program must run to begin a new row of restarts.
	stableRun = 2 * time.Second
)

// ErrEndsSoon means that a program ended soon after each of its last starts, and must wait for the next start.
var ErrEndsSoon = errors.New("it ended soon after each of its last starts")

// Starts limits how often programs that end soon are started again.
type Starts struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	last map[string]lastStart
}

// lastStart is the last start of a program, and the minimum time until the next start.
type lastStart struct {
	at   time.Time
	wait time.Duration
}

// NewStarts returns a Starts that knows of no start.
func NewStarts(c clock.PassiveClock) *Starts {
	return &Starts{clock: c, last: map[string]lastStart{}}
}

// Count counts a start of the named program, or returns ErrEndsSoon if the program must wait. The error does
// not tell the time left, so that a status with this text does not change all the time.
func (s *Starts) Count(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	maps.DeleteFunc(s.last, func(_ string, l lastStart) bool { return now.Sub(l.at) >= l.wait+stableRun })
	last, isRestart := s.last[name]
	if timeLeft := last.wait - now.Sub(last.at); isRestart && timeLeft > 0 {
		return fmt.Errorf("%w, and is started again within %s", ErrEndsSoon, MaxRestartWait)
	}
	next := lastStart{at: now}
	if isRestart {
		next.wait = min(max(2*last.wait, minRestartWait), MaxRestartWait)
	}
	s.last[name] = next
	return nil
}
