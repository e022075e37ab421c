// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/tier"
)

// minKinds is how many kinds of decisions the random ones have at least.
const minKinds = 45

// setChecks says how many random inputs rapid tries in a test. They are the same ones each time
// outside of the full tier.
func setChecks(t *testing.T, gate, full string) {
	t.Helper()
	values := map[string]string{"rapid.checks": full}
	if !tier.IsFull() {
		values = map[string]string{"rapid.checks": gate, "rapid.seed": "1"}
	}
	for name, value := range values {
		f := flag.Lookup(name).Value
		before := f.String()
		assert.NoError(t, f.Set(value))
		t.Cleanup(func() { _ = f.Set(before) })
	}
}

// TestRandomDecisionsReplay records random decisions, reads the records back and derives each
// again: the decision is the same, to the nanosecond.
func TestRandomDecisionsReplay(t *testing.T) {
	setChecks(t, "3000", "10000")
	kinds, steps, n := map[string]bool{}, map[policy.Step]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		in := likelyInput(t)
		d := policy.Decide(in)
		back := throughJSON(t, decisions.New(in, d))
		if differences := rules.Replay(&back); len(differences) > 0 {
			t.Fatalf("%+v", differences)
		}
		n++
		steps[d.Action.Step]++
		kinds[string(d.Action.Operation)+d.Status.Reason+string(d.Status.Phase)] = true
	})
	t.Logf("%d decisions of %d kinds; waits, calls of Ensure and Delete, and finalizers removed: %v", n, len(kinds), steps)
	assert.True(t, len(kinds) >= minKinds && len(steps) == 4, "there are %d kinds, and steps %v", len(kinds), steps)
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// throughJSON writes and reads a record.
func throughJSON(t fataler, r decisions.Record) decisions.Record {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatalf("%v", err)
	}
	f, err := rules.ParseDecisions(text)
	if err != nil || len(f.Records) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if f.Records[0] != r {
		t.Fatalf("the record\n%+v is read as\n%+v", r, f.Records[0])
	}
	return f.Records[0]
}

// TestAnyInputReplays derives decisions from inputs that only an edited file has.
func TestAnyInputReplays(t *testing.T) {
	setChecks(t, "1000", "10000")
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		r := throughJSON(t, decisions.New(in, policy.Decide(in)))
		if differences := rules.Replay(&r); len(differences) > 0 {
			t.Fatalf("%+v", differences)
		}
	})
}

// TestSteppedClock records waits whose times have monotonic readings. They are ordered by the
// monotonic clock.
func TestSteppedClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := policytest.ReportedVM().Observing(policytest.Unknown(0))
	in.Now, in.Observed.DownSince = now, now.Add(-policy.OutageDelay+time.Nanosecond)
	r := throughJSON(t, decisions.New(in, policy.Decide(in)))
	differences := rules.Replay(&r)
	assert.True(t, len(differences) == 0 && r.Decision.WakeAt.Sub(r.Input.Now) == time.Nanosecond, "%+v %s", differences, r.Decision.WakeAt)
}

// TestAnotherPolicyDiffers changes what was recorded, as another version of Drover would have
// decided.
func TestAnotherPolicyDiffers(t *testing.T) {
	t.Parallel()
	in := policytest.ReportedVM().Observing(policytest.Gone())
	r := decisions.New(in, policy.Decide(in))
	r.Decision.Status.Reason, r.Decision.Action.ShortRuns = "Other", 3
	differences := rules.Replay(&r)
	assert.True(t, len(differences) == 2 && differences[0].Field == "action.shortRuns" && differences[1].Recorded == "Other" && differences[1].Derived == "Creating",
		"%+v", differences)
}

// TestReports derives the decisions of each file in testdata again. A user's report becomes a
// test there: its decisions as Drover should have made them, in the form of --decisions or of
// kubectl vm explain --history -o json.
func TestReports(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json*")
	assert.Require(t, err == nil && len(files) != 0, "there are no reports: %v", err)
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			assert.NoError(t, err)
			report, err := rules.ParseDecisions(text)
			assert.Require(t, err == nil && report.Broken == 0, "%v, %d lines are broken", err, report.Broken)
			for i := range report.Records {
				differences := rules.Replay(&report.Records[i])
				assert.True(t, len(differences) == 0, "%+v\n%s", differences, decisions.Format(report.Records[i]))
			}
		})
	}
}
