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

// leadership knows whether this process leads, and why it can no longer lead. Its guard is open while the process leads.
// A leadership begins and ends only once. mu may be locked while view.mu is, never the other way round.
type leadership struct {
	opts    *Options
	guard   *Guard
	lost    chan struct{} // closed when the Lease was lost
	elected chan struct{} // closed when this process has become the leader

	mu       sync.Mutex
	leading  bool
	endCause error
	tryErr   error // the error of the last try to acquire or renew the Lease; nil after a success
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

// checkHealth returns an error if this process led and can no longer renew the Lease.
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

// begin records that this process leads, and opens the guard. The guard's term counts from sent.
func (l *leadership) begin(epoch uint64, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = true
	close(l.elected)
	l.guard.open(epoch, sent, l.opts.Settings.guardTerm())
}

// followHolder is called after each observation of the Lease. It ends the leadership if this process no longer holds
// the Lease.
func (l *leadership) followHolder(before string, observed *observedLease) {
	switch holder := observed.holder(); {
	case holder == l.opts.Identity:
	case !l.isLeading():
		if holder != before && holder != "" {
			l.opts.Log.Info("Standing by: another replica leads", "lease", l.opts.lease(), "leader", holder)
		}
	case observed.lease == nil:
		l.endAsLost(errors.New("it was deleted"))
	default:
		l.endAsLost(fmt.Errorf("its holder is %q", holder))
	}
}

// endAsLost ends leadership because the Lease, or the right to it, was lost.
func (l *leadership) endAsLost(cause error) {
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

// endForRelease ends leadership before a release is sent, so that the release does not look like a loss. Leadership
// cannot begin again.
func (l *leadership) endForRelease() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.leading, l.endCause = false, ErrReleasing
	}
}

// lastTryError returns the error of the last try to acquire or renew the Lease, or nil after a success.
func (l *leadership) lastTryError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tryErr
}

// recordTry records the error of a try to acquire or renew the Lease, and logs the first error after a
// success. It ignores a try that was cancelled because the process stops, which says nothing about the API
// server. An error at the renew deadline does not replace the earlier error, which says more.
func (l *leadership) recordTry(err error) {
	isTimeout := errors.Is(err, errNoAnswer)
	if errors.Is(err, context.Canceled) && !isTimeout {
		return
	}
	l.mu.Lock()
	isFirst, leading := err != nil && l.tryErr == nil, l.leading
	if isFirst || isTimeout || !errors.Is(err, context.DeadlineExceeded) {
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
