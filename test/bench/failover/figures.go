// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/bench"
)

const (
	gracefulAim    = 250 * time.Millisecond // for 99 % of the times from the Lease's release to the new leader
	crashAllowance = time.Second            // for all times from a kill to the new leader, on top of the Lease's duration
)

// circumstances are the conditions under which a handover is measured.
type circumstances struct {
	fleet string         // whose replicas they are: nameDrover or namePlain
	vms   int            // the number of VMs in the cluster
	sig   syscall.Signal // that ends the leader
}

// figure is the time between two events of a handover.
type figure struct {
	sig  syscall.Signal
	what string
	from func(handover) time.Duration
	to   func(handover) time.Duration
	// isIn reports whether a handover has both events.
	isIn func(handover) bool
	// aim is the upper bound of the percentile; 0 means no aim.
	aim        time.Duration
	percentile float64
}

func newFigures(lease time.Duration) []figure {
	signalled := func(handover) time.Duration { return 0 }
	renewed := func(h handover) time.Duration { return h.Renewed }
	released := func(h handover) time.Duration { return h.Released }
	elected := func(h handover) time.Duration { return h.Elected }
	reconciled := func(h handover) time.Duration { return h.Reconciled }
	all := func(handover) bool { return true }
	isReleased := func(h handover) bool { return h.Released > 0 }
	hasLeaderlessVM := func(h handover) bool { return h.HasLeaderlessVM }
	const term, kill = syscall.SIGTERM, syscall.SIGKILL
	return []figure{
		{sig: term, what: "signal to release", from: signalled, to: released, isIn: isReleased},
		{sig: term, what: "release to new leader", from: released, to: elected, isIn: isReleased, aim: gracefulAim, percentile: 99},
		{sig: term, what: "signal to new leader", from: signalled, to: elected, isIn: all},
		{sig: term, what: "new leader to first reconcile", from: elected, to: reconciled, isIn: hasLeaderlessVM},
		{sig: term, what: "signal to first reconcile", from: signalled, to: reconciled, isIn: hasLeaderlessVM},
		{sig: kill, what: "last renewal to new leader", from: renewed, to: elected, isIn: all},
		{sig: kill, what: "kill to new leader", from: signalled, to: elected, isIn: all, aim: lease + crashAllowance, percentile: 100},
		{sig: kill, what: "new leader to first reconcile", from: elected, to: reconciled, isIn: hasLeaderlessVM},
		{sig: kill, what: "kill to first reconcile", from: signalled, to: reconciled, isIn: hasLeaderlessVM},
	}
}

// timesOf returns the times of the handovers that have the figure, in ms.
func (f figure) timesOf(seen []handover) (times []float64) {
	for _, h := range seen {
		if f.isIn(h) {
			times = append(times, bench.Milliseconds(f.to(h)-f.from(h)))
		}
	}
	return times
}

// addRows adds rows for the times of each figure, and for the differences between times with and without VMs.
func (b *benchmark) addRows() {
	for _, f := range newFigures(b.settings.Lease) {
		what := unix.SignalName(f.sig) + ": " + f.what
		for _, vms := range b.Sizes {
			ours, plain := circumstances{nameDrover, vms, f.sig}, circumstances{namePlain, vms, f.sig}
			b.addRow(f, what, ours, f.timesOf(b.handovers[ours]), f.timesOf(b.handovers[plain]))
			if vms > 0 {
				b.addDifferences(f, what, vms)
			}
		}
	}
}

func (b *benchmark) addDifferences(f figure, what string, vms int) {
	for _, name := range []string{nameDrover, namePlain} {
		without, with := circumstances{name, 0, f.sig}, circumstances{name, vms, f.sig}
		base, more := f.timesOf(b.handovers[without]), f.timesOf(b.handovers[with])
		if len(base) == 0 || len(more) == 0 {
			continue
		}
		row := b.AddDifference(what+", added by VMs to "+name, vms, "ms", more, base)
		if name == nameDrover {
			row.RatioAtMost(1) // not above the noise
		}
	}
}

func (b *benchmark) addRow(f figure, what string, at circumstances, ours, plain []float64) {
	if all := len(b.handovers[at]); len(ours) < all {
		b.Notef("%s with %d VMs: %d of %d runs have no such time: the Lease was not released, or the VM was not made while no replica led",
			what, at.vms, all-len(ours), all)
	}
	if len(ours) == 0 {
		return
	}
	row := b.AddRow(what, at.vms, "ms", ours...).CompareWith(namePlain, plain...)
	if f.aim > 0 {
		row.PercentileAtMost(f.percentile, bench.Milliseconds(f.aim))
		row.Met = row.Met && len(ours) == len(b.handovers[at])
	}
}
