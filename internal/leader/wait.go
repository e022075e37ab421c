// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"time"
)

// await returns when the Lease can be taken: it has no holder, or it has expired
// and a live read has just confirmed that it was not renewed.
func (l *Lock) await(ctx context.Context) error {
	for {
		if err := l.awaitFree(ctx); err != nil {
			return err
		}
		if l.given() {
			return nil
		}
		if err := l.read(ctx); err != nil {
			return err
		}
		l.mu.Lock()
		free := l.free()
		l.mu.Unlock()
		if free <= 0 {
			return nil
		}
	}
}

// given reports whether the Lease has no holder.
func (l *Lock) given() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sight.holder() == ""
}

func (l *Lock) awaitFree(ctx context.Context) error {
	for {
		l.mu.Lock()
		free, changed := l.free(), l.changed
		l.mu.Unlock()
		if free <= 0 {
			return nil
		}
		// Timers stand still while the host is suspended.
		if err := l.pause(ctx, changed, min(free, lookAgain)); err != nil {
			return err
		}
	}
}

// free returns the time until the Lease can be taken. The caller holds the lock.
func (l *Lock) free() time.Duration {
	if holder := l.sight.holder(); holder != "" && (holder == l.o.Identity || l.o.HolderGone(holder)) {
		return 0
	}
	return l.sight.freeAt(l.o.Settings.Lease) - l.o.Boot()
}

// pause waits for d. It returns early when early is readable or ctx ends.
func (l *Lock) pause(ctx context.Context, early <-chan struct{}, d time.Duration) error {
	timer := l.o.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-early:
	case <-timer.C():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
