// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
)

var key = types.NamespacedName{Namespace: "default", Name: "vm"}

func newRecorder() *Recorder {
	return New(Options{Replica: "r", Version: "v", Epoch: func() uint64 { return 7 }, Clock: testingclock.NewFakeClock(policytest.T0)})
}

// record decides about a server and records that, some time after T0.
func record(r *Recorder, name string, observed policy.Observed, after time.Duration) {
	in := policytest.ReportedVM().Observing(observed)
	in.VM.Name, in.Now, in.Since = name, policytest.T0.Add(after), policy.Instants{}
	r.Record(in, policy.Decide(in))
}

// TestRepeatedDecisionsAreFolded checks that routine passes count, that their progress does not
// matter, and that steps are never folded.
func TestRepeatedDecisionsAreFolded(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	record(r, "vm", policytest.Gone(), 0)
	r.Finish(key, decisions.Outcome{At: policytest.T0.Add(time.Second), Result: decisions.Failed, Error: "boom"})
	record(r, "vm", policytest.Gone(), time.Second)
	r.Finish(key, decisions.Outcome{At: policytest.T0.Add(2 * time.Second), Result: decisions.Succeeded})
	for i := range 5 {
		pulling := policytest.ChangeServer(policytest.Present(policy.StatePending), func(s *policy.Server) { s.Progress = fmt.Sprint(i, "%") })
		record(r, "vm", pulling, time.Duration(2+i)*time.Second)
	}
	for i := range 100 {
		record(r, "vm", policytest.Present(policy.StateRunning), time.Duration(10+i)*time.Second)
	}
	record(r, "vm", policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.Run = "run-2" }), time.Hour)

	h := r.History(key)
	var got []string
	for _, d := range h.Decisions {
		got = append(got, fmt.Sprint(d.Sequence, " ", cmp.Or(d.Decision.Action.Step, "wait"), " ", d.Decision.Status.Reason, " ", d.Repeats, " ", d.Outcome.Result))
	}
	broken := rules.CheckDecisions(h.Decisions)
	assert.True(t, len(broken) == 0, "%v", broken)
	want := []string{"1 ensure Creating 0 Failed", "2 ensure Creating 0 Succeeded", "3 wait Fetching 4 ", "4 wait Running 99 ", "5 wait Running 0 "}
	assert.Equal(t, "it has\n", strings.Join(got, "\n"), strings.Join(want, "\n"))
	at := h.Decisions[3].Until
	assert.True(t, at.Equal(policytest.T0.Add(109*time.Second)), "it was last decided at %s", at)
	assert.True(t, h.Replica == "r" && h.Version == "v" && h.Leads && h.Epoch == 7 && h.Since.Equal(policytest.T0), "%+v", h)
}

// TestWrite writes decisions and their outcomes, by two processes one after the other, the
// first of which is killed in a line.
func TestWrite(t *testing.T) {
	t.Parallel()
	write := func(replica string) (written []byte) {
		r := newRecorder()
		r.Replica = replica
		r.Write = func(line any) {
			text, err := json.Marshal(line)
			assert.NoError(t, err)
			written = append(append(written, '\n'), text...)
		}
		record(r, "vm", policytest.Gone(), 0)
		r.Finish(key, decisions.Outcome{At: policytest.T0, Result: decisions.Failed, Error: "boom"})
		for range 3 {
			record(r, "vm", policytest.Present(policy.StateRunning), time.Second)
		}
		record(r, "vm", policytest.Gone(), time.Minute)
		return written
	}
	first := write("first")
	f, err := rules.ParseDecisions(append(first[:len(first)-10], write("second")...))
	assert.Require(t, err == nil && len(f.Records) == 5 && f.Broken == 1, "there are %d decisions and %d broken lines, %v", len(f.Records), f.Broken, err)
	for n, want := range []struct {
		replica string
		result  decisions.Result
		repeats int
	}{{"first", decisions.Failed, 0}, {"first", "", 2}, {"second", decisions.Failed, 0}, {"second", "", 2}, {"second", "", 0}} {
		got := f.Records[n]
		assert.True(t, got.Replica == want.replica && got.Outcome.Result == want.result && got.Repeats == want.repeats, "decision %d is %+v, want %+v", n, got, want)
	}
	broken := rules.CheckDecisions(f.Records)
	assert.True(t, len(broken) == 0, "%v", broken)
}

// TestHistoryIsBounded checks the bounds: in number for each VM and in total, and in bytes.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]limits{
		"for each VM": {perVM: 5, records: 1000, bytes: 1 << 30},
		"in total":    {perVM: 1000, records: 40, bytes: 1 << 30},
		"in bytes":    {perVM: 1000, records: 1000, bytes: 100 << 10},
	} {
		r := newRecorder()
		r.limits = limits
		for i := range 500 {
			record(r, fmt.Sprint("vm-", i%10), policytest.Unknown(time.Duration(i)*time.Minute), 0)
			r.Finish(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("vm-", i%10)},
				decisions.Outcome{At: policytest.T0, Result: decisions.Failed, Error: strings.Repeat("x", 500)})
		}
		total, bytes := 0, 0
		for i := range 10 {
			h := r.History(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("vm-", i)})
			total += len(h.Decisions)
			assert.True(t, len(h.Decisions) <= limits.perVM && len(h.Decisions) != 0 && h.Dropped != 0,
				"%s: a VM has %d decisions; %d were dropped", name, len(h.Decisions), h.Dropped)
			last := h.Decisions[len(h.Decisions)-1]
			assert.True(t, last.Sequence >= 490, "%s: decision %d is the last one", name, last.Sequence)
			for i := range h.Decisions {
				bytes += h.Decisions[i].Bytes() + len(h.Decisions[i].Outcome.Error)
			}
		}
		assert.True(t, total <= limits.records && bytes <= limits.bytes+500 && bytes == r.bytes && r.oldest.Len() == total,
			"%s: there are %d decisions of %d bytes, counted as %d and %d", name, total, bytes, r.oldest.Len(), r.bytes)
	}
}

// TestManyVMs records routine passes of 10,000 VirtualMachines: the second one repeats the first.
func TestManyVMs(t *testing.T) {
	t.Parallel()
	const vms = 10000
	r := newRecorder()
	running := policytest.ChangeServer(policytest.Present(policy.StateRunning), func(s *policy.Server) { s.ID, s.Run = strings.Repeat("a", 64), strings.Repeat("b", 64) })
	for pass := range 2 {
		for n := range vms {
			record(r, fmt.Sprint("vm-", n), running, time.Duration(pass)*time.Minute)
		}
	}
	assert.True(t, r.sequence == vms && r.dropped == 0, "there are %d decisions, and %d were dropped", r.sequence, r.dropped)
}

// TestTextsOfEnginesAreCounted checks that every text of an engine counts, however long it is.
func TestTextsOfEnginesAreCounted(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 100<<10)
	for name, set := range map[string]func(*policy.Observed){
		"ID":          func(o *policy.Observed) { o.Server.ID = long },
		"run":         func(o *policy.Observed) { o.Server.Run = long },
		"state":       func(o *policy.Observed) { o.Server.State = policy.State(long) },
		"engine ID":   func(o *policy.Observed) { o.EngineID = long },
		"exit reason": func(o *policy.Observed) { o.Server.Exit.Reason = long },
		"duplicates":  func(o *policy.Observed) { o.Duplicates = policy.ListOf("a", long) },
		"error":       func(o *policy.Observed) { o.Server.Error = long },
	} {
		r := newRecorder()
		observed := policytest.Present(policy.StateRunning)
		set(&observed)
		record(r, "vm", observed, 0)
		assert.True(t, r.bytes >= len(long), "%s: %d bytes are counted", name, r.bytes)
	}
}

// TestNoRecorder records nothing.
func TestNoRecorder(t *testing.T) {
	t.Parallel()
	var r *Recorder
	record(r, "vm", policytest.Gone(), 0)
	r.Finish(key, decisions.Outcome{})
}

// TestReadersAndWriters reads histories while they are written, for the race detector.
func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	r.limits.perVM = 3
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 200 {
				record(r, "vm", policytest.Unknown(time.Duration(i%3)*time.Minute), time.Duration(n))
				r.Finish(key, decisions.Outcome{At: policytest.T0, Result: decisions.Succeeded})
			}
		})
		all.Go(func() {
			for range 200 {
				_ = decisions.Format(r.History(key).Decisions...)
			}
		})
	}
	all.Wait()
}

// BenchmarkDecide measures a decision, and the cost of recording it: one that repeats the last
// one, and a new one.
func BenchmarkDecide(b *testing.B) {
	in := policytest.ReportedVM().Observing(policytest.Present(policy.StateRunning))
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = policy.Decide(in)
		}
	})
	b.Run("recorded as repeated", func(b *testing.B) {
		b.ReportAllocs()
		r := newRecorder()
		for b.Loop() {
			r.Record(in, policy.Decide(in))
		}
	})
	b.Run("recorded as new", func(b *testing.B) {
		b.ReportAllocs()
		r, in := newRecorder(), in
		for n := 0; b.Loop(); n++ {
			in.Observed.Server.Run = []string{"run-1", "run-2"}[n%2]
			r.Record(in, policy.Decide(in))
		}
	})
}
