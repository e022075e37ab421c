// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"time"
)

// awaitAvailable returns when the Lease is available: it has no holder, or it has expired
// and a live read has just confirmed that it was not renewed.
func (l *Lock) awaitAvailable(ctx context.Context) error {
	for {
		if err := l.awaitObservedAvailable(ctx); err != nil {
			return err
		}
		if l.hasNoHolder() {
			return nil
		}
		if err := l.readLease(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		wait := l.untilAvailable()
		l.mu.Unlock()
		if wait <= 0 {
			return nil
		}
	}
}

// hasNoHolder reports whether the Lease has no holder.
func (l *Lock) hasNoHolder() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.observed.holder() == ""
}

func (l *Lock) awaitObservedAvailable(ctx context.Context) error {
	for {
		l.mu.Lock()
		wait, changed := l.untilAvailable(), l.changed
		l.mu.Unlock()
		if wait <= 0 {
			return nil
		}
		// Timers stand still while the host is suspended.
		if err := l.waitFor(ctx, changed, min(wait, checkPeriod)); err != nil {
			return err
		}
	}
}

// untilAvailable returns the time until the Lease is available. The caller holds the
// lock.
func (l *Lock) untilAvailable() time.Duration {
	if holder := l.observed.holder(); holder != "" && (holder == l.opts.Identity || l.opts.HolderGone(holder)) {
		return 0
	}
	return l.observed.availableAt(l.opts.Settings.Lease) - l.opts.Boot()
}

// waitFor waits for d. It returns early when early is readable or ctx ends.
func (l *Lock) waitFor(ctx context.Context, early <-chan struct{}, d time.Duration) error {
	timer := l.opts.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-early:
	case <-timer.C():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
