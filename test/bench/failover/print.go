// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// formatText returns the report in readable form.
func (r *report) formatText() string {
	var w strings.Builder
	o := r.Options
	fmt.Fprintf(&w, "\n%s\n%d runs each, %d replicas of each kind, %s\n", r.Machine, o.Runs, o.Replicas, strings.Join(r.Times, " "))
	if o.VMs > 0 {
		fmt.Fprintf(&w, "%d VMs: all created after %s, Active after %s, settled after %s\n",
			o.VMs, roundDuration(r.Made.Created), roundDuration(r.Made.Active), roundDuration(r.Made.Settled))
	}
	for n, vms := range r.vmCounts() {
		fmt.Fprintf(&w, "Other programs took %.0f %% of the CPUs during the runs with %d VMs\n", r.Others[n], vms)
	}
	r.describeExclusions(&w)
	fmt.Fprintf(&w, "\n%s", r.figuresTable())
	if len(r.Added) > 0 {
		fmt.Fprintf(&w, "\nWhat %d VMs add to the median, and the noise of that:\n\n%s", o.VMs, r.addedTable())
	}
	return w.String()
}

// describeExclusions describes handovers that some figures exclude.
func (r *report) describeExclusions(w *strings.Builder) {
	for _, name := range []string{nameDrover, namePlain} {
		if n := r.Lost[name]; n > 0 {
			fmt.Fprintf(w, "%d replicas of %s ended by themselves, having lost the Lease\n", n, name)
		}
	}
	for _, vms := range r.vmCounts() {
		for _, name := range []string{nameDrover, namePlain} {
			seen := r.handovers[circumstances{name, vms, syscall.SIGTERM}]
			if n := countHandovers(seen, func(h handover) bool { return h.Released == 0 }); n > 0 {
				fmt.Fprintf(w, "SIGTERM with %d VMs: in %d of %d runs %s did not release the Lease, and the others waited it out\n", vms, n, len(seen), name)
			}
		}
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			seen := r.handovers[circumstances{nameDrover, vms, sig}]
			if n := countHandovers(seen, func(h handover) bool { return !h.InGap }); n > 0 {
				fmt.Fprintf(w, "%s with %d VMs: in %d of %d runs the VM did not fall into the gap, and does not count\n", signalName(sig), vms, n, len(seen))
			}
		}
	}
}

func countHandovers(seen []handover, is func(handover) bool) (n int) {
	for _, h := range seen {
		if is(h) {
			n++
		}
	}
	return n
}

func (r *report) figuresTable() string {
	t := bench.NewTable("signal", "from, to", "VMs", "Drover p50", "p99", "max", "client-go p50", "p99", "max", "client-go / Drover p50", "p99", "aim")
	for _, line := range r.Rows {
		ours, plain := line.Drover.Summary, line.Plain.Summary
		cells := []string{line.Signal, line.What, fmt.Sprint(line.VMs)}
		cells = append(cells, summaryCells(ours)...)
		cells = append(cells, summaryCells(plain)...)
		cells = append(cells, formatRatio(plain.P50, ours.P50), formatRatio(plain.P99, ours.P99), formatVerdict(line.Aim, line.Met))
		t.Row(cells...)
	}
	return t.String()
}

func summaryCells(s bench.Summary) []string {
	if s.Runs == 0 {
		return []string{"", "", ""}
	}
	return []string{bench.FormatDuration(s.P50), bench.FormatDuration(s.P99), bench.FormatDuration(s.Max)}
}

func formatRatio(of, to time.Duration) string {
	if of <= 0 || to <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", float64(of)/float64(to))
}

func formatVerdict(aim string, met *bool) string {
	if met == nil {
		return ""
	}
	return aim + ": " + bench.Verdict(*met)
}

func (r *report) addedTable() string {
	t := bench.NewTable("signal", "from, to", "Drover", "noise", "client-go", "noise", "aim")
	for _, a := range r.Added {
		plain := []string{"", ""}
		if a.Plain != nil {
			plain = a.Plain.tableCells()
		}
		t.Row(append(append([]string{a.Signal, a.What}, append(a.Drover.tableCells(), plain...)...), formatVerdict("nothing to be seen", &a.Met))...)
	}
	return t.String()
}

func (c change) tableCells() []string {
	return []string{fmt.Sprintf("%+.1f ms", c.By), fmt.Sprintf("± %.1f ms", c.Noise)}
}
