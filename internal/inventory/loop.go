// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"cloudnative.tw/drover/internal/driver"
)

const (
	// retryPeriod is the time between two tries to reach a lost engine.
	retryPeriod = time.Second
	// maxRefreshPause is the longest pause between two refreshes of servers that events have
	// named.
	maxRefreshPause = 100 * time.Millisecond
)

var errWatchClosed = errors.New("the engine closed its event stream")

// Start keeps the cache current until ctx ends. An unreachable engine is retried;
// it never makes Start fail.
func (i *Inventory) Start(ctx context.Context) error {
	go i.runSampler(ctx)
	go i.suspendWhileFenced(ctx)
	for ctx.Err() == nil {
		began := i.Clock.Now()
		err := i.listAndWatch(ctx)
		if !errors.Is(err, errWatchClosed) || i.Clock.Since(began) < retryPeriod {
			i.waitForSignal(ctx, nil, retryPeriod)
		}
	}
	return nil
}

// NeedLeaderElection returns false: inventories run on standbys too, so that they
// are warm when they take over.
func (i *Inventory) NeedLeaderElection() bool { return false }

// waitForSignal waits for d. It returns early when early is readable, which it reports,
// or when ctx ends.
func (i *Inventory) waitForSignal(ctx context.Context, early <-chan struct{}, d time.Duration) (happened bool) {
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

// listAndWatch opens the engine's events, lists the engine and follows the events. It
// returns when the engine fails. Until the next complete list all is then unknown.
func (i *Inventory) listAndWatch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := i.Driver.Watch(ctx)
	if err == nil {
		err = i.listAll(ctx)
	}
	if err == nil {
		err = i.followEvents(ctx, events)
	}
	if ctx.Err() == nil {
		i.markUnreachable(err)
	}
	return err
}

// listAll lists the whole engine and records which engine that is. The id is read
// before and after: a list of an engine that was replaced meanwhile is invalid.
func (i *Inventory) listAll(ctx context.Context) error {
	before, err := i.readEngineID(ctx)
	if err != nil {
		return err
	}
	if i.cache.setEngine(before) {
		i.cache.publishChanges([]Change{{All: true}})
	}
	result, err := i.queryEngine(ctx)
	if err != nil {
		return err
	}
	after, err := i.readEngineID(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the engine changed from %s to %s while it was listed", before, after)
	}
	if err := i.cache.applyResult(result); err != nil {
		return err
	}
	i.markReachable()
	return nil
}

func (i *Inventory) readEngineID(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	return i.id.EngineID(ctx)
}

// shortGap is how long an event stream may have been closed without that being worth a look at every VM. A pass
// that found the engine unreachable then waits for longer before it reports that.
const shortGap = time.Second

// markReachable makes the cache's answers known. It announces that even if only the event stream had
// closed, unless it was reopened soon: a pass may have reported an outage meanwhile.
func (i *Inventory) markReachable() {
	servers, announce := i.cache.setReachable()
	knownServers.WithLabelValues(i.Name).Set(float64(servers))
	engineUp.WithLabelValues(i.Name).Set(1)
	i.endFirstTry()
	if announce {
		i.Log.Info("Engine listed", "driver", i.Name, "engine", i.cache.engineID)
		i.cache.publishChanges([]Change{{All: true}})
	}
}

// markUnreachable makes the cache's answers unknown.
func (i *Inventory) markUnreachable(cause error) {
	begins, isNewCause := i.cache.setUnreachable(cause)
	if errors.Is(cause, errWatchClosed) {
		return
	}
	engineUp.WithLabelValues(i.Name).Set(0)
	i.endFirstTry()
	if isNewCause {
		i.Log.Info("Engine lost", "driver", i.Name, "cause", cause.Error())
	}
	if begins {
		i.cache.publishChanges([]Change{{All: true}})
	}
}

// followEvents refreshes the UIDs that events name, and lists everything once per period. After each
// refresh comes a pause, in which events add up.
func (i *Inventory) followEvents(ctx context.Context, events <-chan types.UID) error {
	period := i.Clock.NewTicker(i.ListPeriod)
	defer period.Stop()
	refreshDue, pauseOver, holdOver := i.cache.refreshDue, (<-chan time.Time)(nil), (<-chan time.Time)(nil)
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case uid, ok := <-events:
			if !ok {
				return errWatchClosed
			}
			i.cache.markChanged(uid)
		case <-refreshDue:
			var pause time.Duration
			if pause, err = i.refreshUIDs(ctx); pause > 0 {
				refreshDue, pauseOver = nil, i.Clock.After(pause)
			}
			holdOver = i.cache.nextHoldOver()
		case <-holdOver:
			holdOver = nil
			sendSignal(i.cache.refreshDue)
		case <-pauseOver:
			refreshDue, pauseOver = i.cache.refreshDue, nil
		case <-i.cache.checkDue:
			err = i.listAll(ctx)
		case <-period.C():
			err = i.listAll(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// refreshUIDs refreshes the UIDs that events have named, and returns how long the next refresh waits. An
// error about one of them does not mean an outage: only a complete list that fails does.
func (i *Inventory) refreshUIDs(ctx context.Context) (pause time.Duration, err error) {
	began := i.Clock.Now()
	err = i.refreshChanged(ctx)
	if err == nil || ctx.Err() != nil {
		return pauseAfterRefresh(i.Clock.Since(began)), err
	}
	i.Log.Info("Changed servers could not be listed, so all are", "driver", i.Name, "cause", err.Error())
	return retryPeriod, i.listAll(ctx)
}

// pauseAfterRefresh returns the pause after a refresh, so that refreshes take a quarter
// of the time at most. A very short refresh needs no pause.
func pauseAfterRefresh(took time.Duration) time.Duration {
	if took < time.Millisecond {
		return 0
	}
	return min(3*took, maxRefreshPause)
}

// refreshChanged lists the changed UIDs: in one call, but each of those alone whose last refresh has failed, once
// it is held back no longer. A UID with an action under way is left to the end of the action.
func (i *Inventory) refreshChanged(ctx context.Context) error {
	var errs []error
	for _, uids := range i.cache.takeChanged() {
		result, err := i.queryEngine(driver.ForRefresh(ctx), uids...)
		i.cache.noteRefresh(uids, err)
		if err == nil {
			err = i.cache.applyResult(result)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// holds are the UIDs that the engine failed to list. Each is listed again only after a time that doubles with
// every failure, since a complete list follows each failure, however often events name the UID.
type holds struct {
	until   map[types.UID]time.Time
	backoff workqueue.TypedRateLimiter[types.UID]
}

// maxHold is the longest time that a UID is held back.
const maxHold = 5 * time.Minute

func newHolds() holds {
	return holds{map[types.UID]time.Time{}, workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](retryPeriod, maxHold)}
}

func (h holds) noteResult(uid types.UID, err error, now time.Time) {
	if err == nil {
		h.forgetUID(uid)
		return
	}
	h.until[uid] = now.Add(h.backoff.When(uid))
}

// forgetOld forgets the UIDs that were not held back for long.
func (h holds) forgetOld(now time.Time) {
	for uid, until := range h.until {
		if now.Sub(until) > maxHold {
			h.forgetUID(uid)
		}
	}
}

func (h holds) forgetUID(uid types.UID) {
	delete(h.until, uid)
	h.backoff.Forget(uid)
}
