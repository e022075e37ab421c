// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"flag"
	"strconv"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/tier"
)

// busyUsers is how many users keep the deployment busy.
const busyUsers = 6

var runs = flag.Int("runs", 0, "how often TestBenchmark measures each fault; 0 skips it")

// TestFailover lets each fault happen while users create, change and delete VMs. Another
// replica takes over, nothing is lost, and nothing is there twice.
func TestFailover(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; test/failover has replicas without nodes")
	t.Parallel()
	d := Start(t)
	settle := d.KeepBusy(t, busyUsers)
	table := bench.NewTable("fault", "without a leader", "to the first reconcile")
	for _, fault := range Faults() {
		h, err := d.MeasureHandover(t.Context(), fault)
		if err != nil {
			t.Error(err)
			break
		}
		table.Row(fault.Name, formatLeaderless(h), bench.FormatDuration(h.Reconciled))
	}
	settle()
	d.Judge(t)
	t.Logf("\n%s", table)
}

func formatLeaderless(h Handover) string {
	if h.Leaderless == 0 {
		return "no change"
	}
	return bench.FormatDuration(h.Leaderless)
}

// TestBenchmark measures each fault several times, while nothing else happens. It is what
// make bench-cluster runs.
func TestBenchmark(t *testing.T) {
	if *runs < 1 {
		t.Skip("-runs is not set: it is for make bench-cluster")
	}
	d := Start(t)
	table := bench.NewTable("fault", "time", "runs", "p50", "p99", "max")
	for _, fault := range Faults() {
		t.Run(fault.Name, func(t *testing.T) { d.measureFault(t, table, fault, *runs) })
	}
	d.Judge(t)
	t.Logf("\n%s", table)
}

func (d *Deployment) measureFault(t *testing.T, table *bench.Table, fault Fault, runs int) {
	t.Helper()
	var leaderless, reconciled bench.Sample
	for range runs {
		h, err := d.MeasureHandover(t.Context(), fault)
		assert.NoError(t, err)
		t.Logf("without a leader: %s; to the first reconcile: %s", formatLeaderless(h), bench.FormatDuration(h.Reconciled))
		if fault.ChangesLeader {
			leaderless = append(leaderless, h.Leaderless)
		}
		reconciled = append(reconciled, h.Reconciled)
	}
	addFigures(table, fault.Name, "without a leader", leaderless)
	addFigures(table, fault.Name, "to the first reconcile", reconciled)
}

func addFigures(table *bench.Table, fault, what string, sample bench.Sample) {
	if len(sample) == 0 {
		return
	}
	row := []string{fault, what, strconv.Itoa(len(sample))}
	for _, d := range []time.Duration{sample.Median(), sample.Percentile(99), sample.Percentile(100)} {
		row = append(row, bench.FormatDuration(d))
	}
	table.Row(row...)
}
