// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// retryPeriod is the time between two tries to reach a lost engine.
	retryPeriod = time.Second
	// maxRest is the longest rest between two looks at what events have named.
	maxRest = 100 * time.Millisecond
)

var errWatchClosed = errors.New("the engine closed its event stream")

// Start keeps the cache current until ctx ends. An unreachable engine is retried;
// it never makes Start fail.
func (i *Inventory) Start(ctx context.Context) error {
	go i.sampleForever(ctx)
	go i.sitOutFences(ctx)
	for ctx.Err() == nil {
		began := i.Clock.Now()
		err := i.follow(ctx)
		if !errors.Is(err, errWatchClosed) || i.Clock.Since(began) < retryPeriod {
			i.pause(ctx, retryPeriod)
		}
	}
	return nil
}

// NeedLeaderElection returns false: inventories run on standbys too, so that they
// are warm when they take over.
func (i *Inventory) NeedLeaderElection() bool { return false }

func (i *Inventory) pause(ctx context.Context, d time.Duration) { i.pauseOr(ctx, nil, d) }

// pauseOr waits for d. It returns early when early is readable, which it reports,
// or when ctx ends.
func (i *Inventory) pauseOr(ctx context.Context, early <-chan struct{}, d time.Duration) (happened bool) {
	t := i.Clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-early:
		return true
	case <-ctx.Done():
	case <-t.C():
	}
	return false
}

// follow opens the engine's events, lists the engine and follows the events. It
// returns when the engine fails. Until the next complete list all is then unknown.
func (i *Inventory) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := i.Driver.Watch(ctx)
	if err == nil {
		err = i.complete(ctx)
	}
	if err == nil {
		err = i.keepUp(ctx, events)
	}
	if ctx.Err() == nil {
		i.markUnreachable(err)
	}
	return err
}

// complete lists the whole engine and records which engine that is. The id is read
// before and after: a list of an engine that was exchanged meanwhile is invalid.
func (i *Inventory) complete(ctx context.Context) error {
	before, err := i.askID(ctx)
	if err != nil {
		return err
	}
	if i.setEngine(before) {
		i.publish([]Change{{All: true}})
	}
	answer, err := i.ask(ctx)
	if err != nil {
		return err
	}
	after, err := i.askID(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the engine changed from %s to %s while it was listed", before, after)
	}
	if err := i.take(answer); err != nil {
		return err
	}
	i.markReachable()
	return nil
}

func (i *Inventory) askID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	return i.id.EngineID(ctx)
}

// setEngine drops all that is known of another engine, its outage included, and
// reports whether there was another one.
func (i *Inventory) setEngine(id string) (exchanged bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.engineID == id {
		return false
	}
	exchanged = i.engineID != ""
	i.known, i.engineID = false, id
	if !exchanged {
		return false
	}
	notify(i.exchanged)
	i.seq++
	i.met = i.seq
	i.failed, i.downSince, i.cause = false, time.Time{}, errNotListed
	i.began = i.Clock.Now()
	i.backSince = i.began
	for uid, e := range i.entries {
		e.servers = nil
		e.forgetUsage()
		i.prune(uid, e)
	}
	return true
}

// markReachable makes the cache's answers known.
func (i *Inventory) markReachable() {
	i.mu.Lock()
	tell := i.neverKnown() || !i.known && i.failed
	i.known = true
	if i.failed {
		i.backSince = i.Clock.Now()
	}
	i.failed = false
	knownServers.WithLabelValues(i.Name).Set(float64(len(i.entries)))
	i.mu.Unlock()
	engineUp.WithLabelValues(i.Name).Set(1)
	if tell {
		i.Log.Info("Engine listed", "driver", i.Name, "engine", i.engineID)
		i.publish([]Change{{All: true}})
	}
}

// markUnreachable makes the cache's answers unknown. A closed event stream may be
// reopened at once, so it is not an outage yet.
func (i *Inventory) markUnreachable(cause error) {
	i.mu.Lock()
	if i.known {
		i.downSince = i.Clock.Now()
	}
	i.known = false
	if errors.Is(cause, errWatchClosed) {
		if !i.failed {
			i.cause = cause
		}
		i.mu.Unlock()
		return
	}
	if i.downSince.IsZero() {
		i.downSince = i.began
	}
	tell, news := !i.failed, !i.failed || i.cause.Error() != cause.Error()
	i.failed, i.cause = true, cause
	i.mu.Unlock()
	engineUp.WithLabelValues(i.Name).Set(0)
	if news {
		i.Log.Info("Engine lost", "driver", i.Name, "cause", cause.Error())
	}
	if tell {
		i.publish([]Change{{All: true}})
	}
}

// keepUp looks at the UIDs that events name, and at everything once per period.
// Looks take a bounded share of a busy engine's time: after each comes a rest that
// depends on how long the look took. Events add up meanwhile.
func (i *Inventory) keepUp(ctx context.Context, events <-chan types.UID) error {
	period := i.Clock.NewTicker(i.ListPeriod)
	defer period.Stop()
	dirty, rested := i.dirty, (<-chan time.Time)(nil)
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case uid, ok := <-events:
			if !ok {
				return errWatchClosed
			}
			i.mark(uid)
		case <-dirty:
			began := i.Clock.Now()
			err = i.lookAtMarked(ctx)
			if rest := restAfter(i.Clock.Since(began)); rest > 0 {
				dirty, rested = nil, i.Clock.After(rest)
			}
		case <-rested:
			dirty, rested = i.dirty, nil
		case <-i.suspect:
			err = i.complete(ctx)
		case <-period.C():
			err = i.complete(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// restAfter returns the rest after a look, so that looks take a quarter of the time
// at most. A very short look needs no rest.
func restAfter(took time.Duration) time.Duration {
	if took < time.Millisecond {
		return 0
	}
	return min(3*took, maxRest)
}

func (i *Inventory) mark(uid types.UID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.entry(uid)
	e.look, i.marked[uid] = true, true
	if e.busy == 0 {
		notify(i.dirty)
	}
}

// lookAtMarked lists the marked UIDs in one call. A UID with an action under way is
// left to the end of the action.
func (i *Inventory) lookAtMarked(ctx context.Context) error {
	i.mu.Lock()
	var uids []types.UID
	for uid := range i.marked {
		if e := i.entry(uid); e.busy == 0 {
			e.look = false
			delete(i.marked, uid)
			uids = append(uids, uid)
		}
	}
	i.mu.Unlock()
	if len(uids) == 0 {
		return nil
	}
	answer, err := i.ask(ctx, uids...)
	if err != nil {
		return err
	}
	return i.take(answer)
}
