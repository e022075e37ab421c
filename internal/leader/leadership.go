// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// leadership is whether this process leads, why it can no longer lead, and the guard, which is open while it leads. It
// begins and ends once. Its lock may be taken while that of the view is held, never the other way round.
type leadership struct {
	opts    *Options
	guard   *Guard
	lost    chan struct{} // closed when the Lease was lost
	elected chan struct{} // closed when this process has become the leader

	mu       sync.Mutex
	leading  bool
	endCause error
	tryErr   error // of the last try to acquire or renew the Lease; nil if it succeeded
}

// currentState reports whether this process leads. It fails if the process can no longer lead.
func (l *leadership) currentState() (leading bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading, l.endCause
}

func (l *leadership) isLeading() bool {
	leading, _ := l.currentState()
	return leading
}

// checkHealth returns an error for a leader that can no longer renew.
func (l *leadership) checkHealth() error {
	leading, endCause := l.currentState()
	switch {
	case errors.Is(endCause, ErrLost):
		return endCause
	case leading && l.guard.hasLapsed():
		return ErrLapsed
	}
	return nil
}

// begin records that this process leads, and opens the guard from the moment of sending.
func (l *leadership) begin(epoch uint64, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = true
	close(l.elected)
	l.guard.open(epoch, sent, l.opts.Settings.guardTerm())
}

// followHolder ends the leadership of a leader that no longer holds the Lease, after each observation.
func (l *leadership) followHolder(before string, observed *observedLease) {
	switch holder := observed.holder(); {
	case holder == l.opts.Identity:
	case !l.isLeading():
		if holder != before && holder != "" {
			l.opts.Log.Info("Standing by: another replica leads", "lease", l.opts.lease(), "leader", holder)
		}
	case observed.lease == nil:
		l.lose(errors.New("it was deleted"))
	default:
		l.lose(fmt.Errorf("its holder is %q", holder))
	}
}

// lose ends leadership because the Lease, or the right to it, was lost.
func (l *leadership) lose(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading {
		return
	}
	l.leading, l.endCause = false, fmt.Errorf("%w: %w", ErrLost, cause)
	l.guard.revoke(l.endCause)
	l.opts.Log.Info("Lost leadership", "identity", l.opts.Identity, "cause", l.endCause.Error())
	close(l.lost)
}

// endForRelease ends leadership before a release is sent, so that the release is not treated as a loss. It cannot be
// undone.
func (l *leadership) endForRelease() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.leading, l.endCause = false, ErrReleasing
	}
}

// lastTry returns the error of the last try to acquire or renew the Lease, or nil if it succeeded.
func (l *leadership) lastTry() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tryErr
}

// recordTry records the error of a try to acquire or renew the Lease, and logs the first one after a
// success. A try that a stop has ended says nothing about the API server. A try that the renew deadline
// has ended says less than the one before it.
func (l *leadership) recordTry(err error) {
	isNamed := errors.Is(err, errNoAnswer)
	if errors.Is(err, context.Canceled) && !isNamed {
		return
	}
	l.mu.Lock()
	isFirst, leading := err != nil && l.tryErr == nil, l.leading
	if isFirst || isNamed || !errors.Is(err, context.DeadlineExceeded) {
		l.tryErr = err
	}
	l.mu.Unlock()
	switch {
	case isFirst && leading:
		l.opts.Log.Info("The Lease was not renewed", "lease", l.opts.lease(), "cause", err.Error())
	case isFirst:
		l.opts.Log.Info("Waiting until the Lease can be acquired", "lease", l.opts.lease(), "cause", err.Error())
	}
}
