// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// An engine that refuses this process is asked again after 1 s, doubling to 5
// minutes, whether it still does.
const (
	firstProbe = time.Second
	lastProbe  = 5 * time.Minute
)

// noServer is the UID of the change that asks an engine whether it admits this
// process. No VirtualMachine has it: the API server's UIDs are of version 4.
const noServer = "00000000-0000-0000-0000-000000000000"

// fence is what an inventory knows of an engine that refuses this process. From
// the first refusal on no call that changes something reaches the engine.
type fence struct {
	cause error
	since time.Time
	// shown is set once it is certain that this process leads all the same. Until
	// then it may only be late in hearing of its successor, who reports.
	shown bool
}

// refused is ErrFenced while the engine refuses this process.
func (i *Inventory) refused() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fence == nil {
		return nil
	}
	return driver.Errorf(driver.ErrFenced, "nothing was done, since the engine has refused this process: %w", i.fence.cause)
}

func (i *Inventory) isSuspended() bool { return i.refused() != nil }

// checkFence suspends the driver when the engine has refused a call.
func (i *Inventory) checkFence(err error) {
	if !errors.Is(err, driver.ErrFenced) {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fence == nil {
		i.fence = &fence{cause: err, since: i.Clock.Now()}
		notify(i.fenced)
	}
}

// sitOutFences has a driver whose engine refuses this process wait until ctx ends.
func (i *Inventory) sitOutFences(ctx context.Context) {
	engineFenced.WithLabelValues(i.Name).Set(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.fenced:
			if i.stillLeads(ctx) {
				i.showFence()
				i.awaitAdmission(ctx)
			}
		}
	}
}

// stillLeads asks until there is an answer.
func (i *Inventory) stillLeads(ctx context.Context) bool {
	for ctx.Err() == nil {
		leads, err := i.Leads(ctx)
		if err == nil {
			return leads
		}
		i.pause(ctx, retryPeriod)
	}
	return false
}

// showFence makes every answer unknown, and tells of it once.
func (i *Inventory) showFence() {
	i.mu.Lock()
	i.fence.shown = true
	cause := i.fence.cause
	i.mu.Unlock()
	engineFenced.WithLabelValues(i.Name).Set(1)
	i.Log.Error(cause, "The engine refuses this process, which leads: its driver is suspended until the engine admits it", "driver", i.Name)
	if i.Refused != nil {
		i.Refused(cause)
	}
	i.publish([]Change{{All: true}})
}

// awaitAdmission asks the engine now and then, by removing a server that is not
// there: who is not admitted is refused before that is found out. What another engine
// has refused says nothing about one that takes its place, so the waits begin anew.
func (i *Inventory) awaitAdmission(ctx context.Context) {
	for wait := firstProbe; ; wait = min(2*wait, lastProbe) {
		for i.pauseOr(ctx, i.exchanged, wait) {
			wait = firstProbe
		}
		if ctx.Err() != nil {
			return
		}
		if i.admits(ctx) {
			break
		}
	}
	i.mu.Lock()
	i.fence = nil
	i.mu.Unlock()
	engineFenced.WithLabelValues(i.Name).Set(0)
	i.Log.Info("The engine admits this process again", "driver", i.Name)
	i.publish([]Change{{All: true}})
}

func (i *Inventory) admits(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	err := i.Driver.Delete(ctx, driver.Target{UID: noServer}, false)
	return err == nil || errors.Is(err, driver.ErrNotFound)
}
