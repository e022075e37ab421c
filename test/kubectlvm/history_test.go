// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"strings"
	"testing"
	"unicode/utf8"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/testenv"
)

// history is the history of decisions about a VM, made by two leaders, one after the other.
type history struct {
	*user
	r *replicas
}

// startHistory lets the first leader decide while it is the only replica.
func startHistory(t *testing.T, r *replicas) *history {
	t.Helper()
	h := &history{newUserOf(t, r.Environment), r}
	r.SetFaults(t, failing+":\n  failCreate: 2\n  message: out of luck\n")
	h.mustRun("create", failing, "--driver=fake", "--cpu=1", "--wait")
	h.mustRun("stop", failing, "--wait")
	return h
}

// testHistory reads the decisions, as several users and with a standby at the same address, and
// derives them again from the report in JSON.
func (h *history) testHistory(t *testing.T) {
	t.Helper()
	checkHistory(t, h.mustRun("explain", failing, "--history"),
		"Decisions about "+h.namespace+"/failing, the newest last.", "Replica replica-0_", "leads with epoch",
		"Generation 1 of the spec wants the VM active. The fake engine does not have a server.", "So Drover creates the server. The status is Creating, Creating.",
		"The step failed after", "out of luck", "Create has failed 2 times in a row (OperationFailed)", "So Drover waits (Create). The status is Failed,",
		"The step succeeded after", "The status is Active, Running, ready.", "wants the VM stopped", "So Drover stops the server.", "StoppedAsAsked")
	report, err := rules.ParseDecisions([]byte(h.mustRun("explain", failing, "--history", "-o", "json")))
	broken := rules.CheckDecisions(report.Records)
	assert.True(t, err == nil && len(report.Records) != 0 && len(broken) == 0, "%d decisions: %v, %v", len(report.Records), err, broken)

	viewer := h.r.signIn(t, h.user, "viewer")
	h.r.Bind(t, h.namespace, "view", testenv.Person("viewer"))
	viewer.eventuallyRun("explain", failing, "--history")
	h.r.signIn(t, h.user, "stranger").mustFail(3, []string{`cannot get resource "virtualmachines/decisions"`}, "explain", failing, "--history")
	h.mustFail(3, []string{"not found"}, "explain", "absent", "--history")
}

func (h *history) testNextLeader(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the next leader has decided", func(testing.TB) error {
		out := h.run("explain", failing, "--history").out
		return assert.ErrorUnless(strings.Contains(out, "Replica replica-1_") && strings.Contains(out, "So "), "history prints %s", out)
	})
	h.mustRun("delete", failing, "--yes")
	assert.Eventually(t, "the history is deleted with its VM", func(testing.TB) error {
		got := h.run("explain", failing, "--history")
		return assert.ErrorUnless(got.code == 3 && strings.Contains(got.errs, "not found"), "history ends with %d and prints %s%s", got.code, got.out, got.errs)
	})
}

// checkHistory checks that a printed history contains texts and fits into 80 columns.
func checkHistory(t *testing.T, out string, texts ...string) {
	t.Helper()
	wantTexts(t, strings.Join(strings.Fields(out), " "), texts...)
	for line := range strings.Lines(out) {
		assert.True(t, utf8.RuneCountInString(line) <= 81, "a line is longer than 80: %s", line)
	}
}
