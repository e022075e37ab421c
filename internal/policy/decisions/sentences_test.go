// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
)

func TestSentences(t *testing.T) {
	t.Parallel()
	ended := decisions.Outcome{At: policytest.T0.Add(time.Second), Result: decisions.Ended, API: "Conflict"}
	deposed := decisions.Outcome{At: policytest.T0.Add(2 * time.Second), Result: decisions.Ended, Error: "the Lease was lost: context canceled"}
	tests := map[string]struct {
		change  func(*policy.Input)
		outcome decisions.Outcome
		later   decisions.LaterFacts
		want    string
	}{
		"a creation": {change: func(*policy.Input) {}, outcome: decisions.Outcome{At: policytest.T0.Add(time.Second), Result: decisions.Succeeded}, want: `default/vm 2026-01-02 03:04:05.000Z
  Generation 2 of the spec wants the VM active. The fake engine does not have a server.
  So Drover creates the server. The status is Creating, Creating.
  The step succeeded after 1s.
`},
		"an outage, twice": {change: func(in *policy.Input) {
			in.Observed = policytest.Unknown(time.Minute)
		}, later: decisions.LaterFacts{Repeats: 1, Until: policytest.T0.Add(time.Hour)}, want: `default/vm 2026-01-02 03:04:05.000Z, and again at 2026-01-02 04:04:05.000Z
  Generation 2 of the spec wants the VM active. The fake engine cannot be asked: connection refused.
  So there is nothing to do. The status is Unknown, EngineUnavailable: connection refused.
`},
		"a crash": {change: func(in *policy.Input) {
			in.Observed = policytest.Ended(137)
		}, outcome: ended, want: `default/vm 2026-01-02 03:04:05.000Z
  Generation 2 of the spec wants the VM active. The fake engine has server id-1, Stopped (ended with code 137).
  So Drover starts the server. The status is Creating, Restarting: the server ended with code 137.
  The controller's pass ended after 1s, since the API server answered Conflict.
`},
		"a restart": {change: func(in *policy.Input) {
			in.VM.Spec.RestartedAt = policytest.T0
			in.Observed = policytest.Present(policy.StateRunning)
		}, outcome: deposed, want: `default/vm 2026-01-02 03:04:05.000Z
  Generation 2 of the spec wants the VM active. The fake engine has server id-1, Running.
  The spec requests a restart (2026-01-02T03:04:05Z). No earlier request was handled.
  So Drover restarts the server, ending run run-1. The status is Active, Restarting.
  The controller's pass ended after 2s: the Lease was lost: context canceled.
`},
		"a spec to apply": {change: func(in *policy.Input) {
			in.Observed, in.PassedGeneration = policytest.Present(policy.StateRunning), 1
		}, want: `default/vm 2026-01-02 03:04:05.000Z
  Generation 2 of the spec wants the VM active. The fake engine has server id-1, Running.
  The driver has only generation 1 of the spec.
  So Drover applies the spec to the server. The status is Active, Updating.
  The outcome is not known: the step was still under way, or the process ended.
`},
		"a deletion that is blocked": {change: func(in *policy.Input) {
			in.VM.IsDeleted, in.Observed.Answer, in.Observed.Duplicates = true, policy.Present, policy.ListOf("a", "b")
		}, want: `default/vm 2026-01-02 03:04:05.000Z
  The VM is being deleted. The fake engine has 2 servers: a, b.
  So Drover waits (Delete). The status is Terminating, Duplicate: 2 servers carry the UID uid-1 (a, b): remove all but one.
`},
	}
	for name, tc := range tests {
		in := policytest.ReportedVM().Observing(policytest.Gone())
		tc.change(&in)
		r := decisions.New(in, policy.Decide(in))
		r.LaterFacts = tc.later
		r.Outcome = tc.outcome
		got := decisions.Format(r)
		assert.True(t, got == tc.want, "%s:\n%s\nwant\n%s", name, got, tc.want)
	}
}

// TestSentencesOfAnything formats random decisions: each says what was seen, and the decision.
func TestSentencesOfAnything(t *testing.T) {
	setChecks(t, "100", "1000")
	rapid.Check(t, func(t *rapid.T) {
		in := randomInput(t)
		r := decisions.New(in, policy.Decide(in))
		r.Outcome = decisions.Outcome{At: in.Now, Result: decisions.Failed, Error: "boom"}
		text := strings.Join(r.Sentences(), "\n")
		for _, part := range []string{"\nSo ", "boom", ". "} {
			if !strings.Contains(text, part) {
				t.Fatalf("there is no %q in %s", part, text)
			}
		}
	})
}
