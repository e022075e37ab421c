// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/bench"
)

// Aims.
const (
	gracefulAim    = 250 * time.Millisecond // p99, from the release
	crashAllowance = time.Second            // the most, on top of the Lease
)

// circumstances are the conditions under which a handover is measured.
type circumstances struct {
	fleet string
	vms   int
	sig   syscall.Signal
}

// figure is one thing that is measured in a handover.
type figure struct {
	sig  syscall.Signal
	what string
	from func(handover) time.Duration
	to   func(handover) time.Duration
	// isIn tells which handovers have such a time.
	isIn func(handover) bool
	// aim is the most that the percentile may be; 0 means that there is no aim.
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
	inGap := func(h handover) bool { return h.InGap }
	const term, kill = syscall.SIGTERM, syscall.SIGKILL
	return []figure{
		{term, "signal to release", signalled, released, isReleased, 0, 0},
		{term, "release to new leader", released, elected, isReleased, gracefulAim, 99},
		{term, "signal to new leader", signalled, elected, all, 0, 0},
		{term, "new leader to first reconcile", elected, reconciled, inGap, 0, 0},
		{term, "signal to first reconcile", signalled, reconciled, inGap, 0, 0},
		{kill, "last renewal to new leader", renewed, elected, all, 0, 0},
		{kill, "kill to new leader", signalled, elected, all, lease + crashAllowance, 100},
		{kill, "new leader to first reconcile", elected, reconciled, inGap, 0, 0},
		{kill, "kill to first reconcile", signalled, reconciled, inGap, 0, 0},
	}
}

// timesOf returns a figure of the handovers that have it, in ms.
func (f figure) timesOf(seen []handover) (times []float64) {
	for _, h := range seen {
		if f.isIn(h) {
			times = append(times, bench.Milliseconds(f.to(h)-f.from(h)))
		}
	}
	return times
}

// addRows makes rows of what was seen, and of what the VMs added to it.
func (b *benchmark) addRows() {
	for _, f := range newFigures(b.settings.Lease) {
		what := unix.SignalName(f.sig) + ": " + f.what
		times := map[circumstances][]float64{}
		for _, vms := range b.Sizes {
			ours, plain := circumstances{nameDrover, vms, f.sig}, circumstances{namePlain, vms, f.sig}
			times[ours], times[plain] = f.timesOf(b.handovers[ours]), f.timesOf(b.handovers[plain])
			b.addRow(f, what, ours, times[ours], times[plain])
			for _, name := range []string{nameDrover, namePlain} {
				bare, full := times[circumstances{name, 0, f.sig}], times[circumstances{name, vms, f.sig}]
				if vms == 0 || len(bare) == 0 || len(full) == 0 {
					continue
				}
				if row := b.AddDifference(what+", added by VMs to "+name, vms, "ms", full, bare); name == nameDrover {
					row.RatioAtMost(1) // nothing to be seen
				}
			}
		}
	}
}

func (b *benchmark) addRow(f figure, what string, at circumstances, ours, plain []float64) {
	if all := len(b.handovers[at]); len(ours) < all {
		b.Notef("%s with %d VMs: %d of %d runs have no such time: the Lease was not released, or the VM did not fall into the gap",
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
