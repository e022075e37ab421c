// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// An engine that refuses this process is probed after 1 s, doubling to 5 minutes,
// for whether it still does.
const (
	minProbeDelay = time.Second
	maxProbeDelay = 5 * time.Minute
)

// probeUID is the UID of the deletion that probes whether an engine admits this
// process. No VirtualMachine has it: the API server's UIDs are of version 4.
const probeUID = "00000000-0000-0000-0000-000000000000"

// refusal records that an engine refuses this process. From the first refusal on, no
// call that changes something reaches the engine.
type refusal struct {
	cause error
	since time.Time
	// reported is set once it is certain that this process leads nevertheless. Until
	// then it may only not have observed its successor yet, and the successor
	// reports.
	reported bool
}

// suspendIfFenced suspends the driver if the engine has refused a call.
func (i *Inventory) suspendIfFenced(err error) {
	if !errors.Is(err, driver.ErrFenced) {
		return
	}
	i.cache.mu.Lock()
	defer i.cache.mu.Unlock()
	if i.cache.refusal == nil {
		i.cache.refusal = &refusal{cause: err, since: i.Clock.Now()}
		sendSignal(i.fenced)
	}
}

// suspendWhileFenced suspends the driver whenever its engine refuses this process, until
// ctx ends.
func (i *Inventory) suspendWhileFenced(ctx context.Context) {
	engineFenced.WithLabelValues(i.Name).Set(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.fenced:
			if i.confirmLeadership(ctx) {
				i.reportRefusal()
				i.awaitAdmission(ctx)
			}
		}
	}
}

// confirmLeadership repeats ConfirmLeading until it returns an answer.
func (i *Inventory) confirmLeadership(ctx context.Context) bool {
	for ctx.Err() == nil {
		leads, err := i.ConfirmLeading(ctx)
		if err == nil {
			return leads
		}
		i.waitForSignal(ctx, nil, retryPeriod)
	}
	return false
}

// reportRefusal makes every answer unknown, and reports the refusal once.
func (i *Inventory) reportRefusal() {
	i.cache.mu.Lock()
	i.cache.refusal.reported = true
	cause := i.cache.refusal.cause
	i.cache.mu.Unlock()
	engineFenced.WithLabelValues(i.Name).Set(1)
	i.Log.Error(cause, "The engine refuses this process, which leads: its driver is suspended until the engine admits it", "driver", i.Name)
	if i.OnFenced != nil {
		i.OnFenced(cause)
	}
	i.cache.publishChanges([]Change{{All: true}})
}

// awaitAdmission probes the engine by deleting a server that does not exist. An
// engine that does not admit this process refuses the call before it looks for the
// server. A refusal by one engine does not apply to its replacement, so the waits
// start over then.
func (i *Inventory) awaitAdmission(ctx context.Context) {
	for wait := minProbeDelay; ; wait = min(2*wait, maxProbeDelay) {
		for i.waitForSignal(ctx, i.cache.replaced, wait) {
			wait = minProbeDelay
		}
		if ctx.Err() != nil {
			return
		}
		if i.probeAdmission(ctx) {
			break
		}
	}
	i.cache.mu.Lock()
	i.cache.refusal = nil
	i.cache.mu.Unlock()
	engineFenced.WithLabelValues(i.Name).Set(0)
	i.Log.Info("The engine admits this process again", "driver", i.Name)
	i.cache.publishChanges([]Change{{All: true}})
}

func (i *Inventory) probeAdmission(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	err := i.Driver.Delete(ctx, driver.Target{UID: probeUID}, false)
	return err == nil || errors.Is(err, driver.ErrNotFound)
}
