// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"flag"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/tier"
)

// busyUsers is how many users keep the deployment busy.
const busyUsers = 6

var runs = flag.Int("runs", 0, "how often TestBenchmark measures each fault; 0 skips it")

// TestFailover injects each fault while users create, change and delete VMs. Another replica takes
// over, and no container is lost or created twice.
func TestFailover(t *testing.T) {
	tier.Full(t, "it starts a cluster of nodes; test/failover has replicas without nodes")
	t.Parallel()
	d := Start(t)
	settle := d.KeepBusy(t, busyUsers)
	report := bench.NewReport()
	for _, fault := range Faults() {
		h, err := d.MeasureHandover(t.Context(), fault)
		if err != nil {
			t.Error(err)
			break
		}
		addFigures(report, fault, []Handover{h})
	}
	settle()
	d.Judge(t)
	t.Log(report)
}

// addFigures reports for how long no replica led, and the time until the first reconcile.
func addFigures(r *bench.Report, fault Fault, seen []Handover) {
	add := func(what string, of func(Handover) time.Duration) {
		r.AddRow(fault.Name+": "+what, 1, "ms", bench.Figures(seen, func(h Handover) float64 { return bench.Milliseconds(of(h)) })...)
	}
	if fault.ChangesLeader {
		add("without a leader", func(h Handover) time.Duration { return h.Leaderless })
	}
	add("to the first reconcile", func(h Handover) time.Duration { return h.Reconciled })
}

// TestBenchmark measures each fault several times, without other load.
// make bench-cluster runs it.
func TestBenchmark(t *testing.T) {
	if *runs < 1 {
		t.Skip("-runs is not set: it is for make bench-cluster")
	}
	d := Start(t)
	report := bench.NewReport()
	for _, fault := range Faults() {
		var seen []Handover
		for range *runs {
			h, err := d.MeasureHandover(t.Context(), fault)
			assert.NoError(t, err)
			seen = append(seen, h)
		}
		addFigures(report, fault, seen)
	}
	d.Judge(t)
	t.Log(report)
}
