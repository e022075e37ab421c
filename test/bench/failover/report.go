// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/bench"
)

// report is the result of all measurements.
type report struct {
	Machine bench.Machine       `json:"machine"`
	Options options             `json:"options"`
	Times   []string            `json:"times"`
	Made    bench.CreationTimes `json:"made"`
	Rows    []row               `json:"figures"`
	Added   []added             `json:"addedByVMs"`
	// Others is how much of the CPUs other programs used meanwhile, in per cent,
	// without VMs and with them.
	Others []float64 `json:"othersPercentOfCPUs"`
	// Lost counts replicas that ended without being stopped.
	Lost map[string]int `json:"endedByThemselves"`

	handovers map[circumstances][]handover
}

// circumstances is the circumstances of a handover.
type circumstances struct {
	fleet string
	vms   int
	sig   syscall.Signal
}

// row is a figure of both kinds beside each other.
type row struct {
	Signal string   `json:"signal"`
	What   string   `json:"what"`
	VMs    int      `json:"vms"`
	Drover measured `json:"drover"`
	Plain  measured `json:"clientGo"`
	Aim    string   `json:"aim,omitempty"`
	Met    *bool    `json:"met,omitempty"`
}

type measured struct {
	Summary bench.Summary `json:"summary"`
	Runs    bench.Sample  `json:"runsMilliseconds"`
}

// added is what the VMs added to a figure's median.
type added struct {
	Signal string  `json:"signal"`
	What   string  `json:"what"`
	Drover change  `json:"drover"`
	Plain  *change `json:"clientGo,omitempty"`
	Met    bool    `json:"met"`
}

// change is none to be seen if it is not larger than the noise.
type change struct {
	By    float64 `json:"byMilliseconds"`
	Noise float64 `json:"noiseMilliseconds"`
}

func newReport(o options) *report {
	times := timeArgs("", o.Settings)
	slices.Sort(times)
	return &report{Machine: bench.ThisMachine(), Options: o, Times: times, Lost: map[string]int{}, handovers: map[circumstances][]handover{}}
}

func (r *report) addHandover(fleet string, vms int, sig syscall.Signal, h handover) {
	at := circumstances{fleet, vms, sig}
	r.handovers[at] = append(r.handovers[at], h)
}

// addRows makes rows of what was seen.
func (r *report) addRows() {
	for _, f := range newFigures(r.Options.Settings.Lease) {
		for _, vms := range r.vmCounts() {
			r.Rows = append(r.Rows, r.newRow(f, vms))
		}
		if last := len(r.Rows) - 1; r.Options.VMs > 0 {
			r.addComparison(r.Rows[last-1], r.Rows[last])
		}
	}
}

// vmCounts are the numbers of VMs that were measured with.
func (r *report) vmCounts() []int {
	if r.Options.VMs == 0 {
		return []int{0}
	}
	return []int{0, r.Options.VMs}
}

func (r *report) newRow(f figure, vms int) row {
	ours := r.handovers[circumstances{nameDrover, vms, f.sig}]
	line := row{
		Signal: signalName(f.sig), What: f.what, VMs: vms,
		Drover: newMeasured(f, ours), Plain: newMeasured(f, r.handovers[circumstances{namePlain, vms, f.sig}]),
	}
	if f.aim > 0 {
		line.Aim = fmt.Sprintf("%s <= %s", percentileName(f.percentile), bench.FormatDuration(f.aim))
		all := len(line.Drover.Runs) == len(ours)
		line.Met = new(all && line.Drover.Runs.Percentile(f.percentile) <= f.aim)
	}
	return line
}

func newMeasured(f figure, seen []handover) measured {
	var s bench.Sample
	for _, h := range seen {
		if d, ok := f.of(h); ok {
			s = append(s, d)
		}
	}
	return measured{Summary: s.Summary(), Runs: s}
}

// addComparison reports what the VMs added, if that is measurable.
func (r *report) addComparison(bare, full row) {
	ours := newChange(bare.Drover.Runs, full.Drover.Runs)
	if ours == nil {
		return
	}
	r.Added = append(r.Added, added{
		Signal: bare.Signal, What: bare.What, Drover: *ours, Plain: newChange(bare.Plain.Runs, full.Plain.Runs),
		Met: ours.By <= ours.Noise,
	})
}

func newChange(bare, full bench.Sample) *change {
	if len(bare) == 0 || len(full) == 0 {
		return nil
	}
	by, noise := bench.Difference(bare, full)
	return &change{By: bench.Milliseconds(by), Noise: bench.Milliseconds(noise)}
}

func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }

func percentileName(p float64) string {
	if p == 100 {
		return "max"
	}
	return fmt.Sprintf("p%.0f", p)
}
