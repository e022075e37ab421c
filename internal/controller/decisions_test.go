// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// newHistory returns a recorder whose decisions are derived again at the end of the test: so
// every test of reconcile tests replays too.
func (g *rig) newHistory() *recorder.Recorder {
	history := recorder.New(recorder.Options{Replica: "test", Clock: g.clock, Epoch: func() uint64 { return 7 }})
	g.t.Cleanup(func() {
		all := history.History(key).Decisions
		if broken := rules.CheckDecisions(all); len(broken) > 0 {
			g.t.Errorf("%v\n%s", broken, decisions.Format(all...))
		}
	})
	return history
}

// outcomes returns the steps of the VM and their outcomes.
func (g *rig) outcomes() string {
	var lines []string
	for _, r := range g.r.Decisions.History(key).Decisions {
		if o := r.Outcome; o.Result != "" {
			lines = append(lines, strings.TrimSpace(strings.Join([]string{string(r.Decision.Action.Operation), string(o.Result), o.API, o.Error}, " ")))
		}
	}
	return strings.Join(lines, "\n")
}

// TestOutcomesAreRecorded checks what is recorded of steps that succeed, fail, have no effect or
// are not allowed.
func TestOutcomesAreRecorded(t *testing.T) {
	tests := map[string]struct {
		play func(g *rig)
		want string
	}{
		"a success": {func(*rig) {}, "Create Succeeded"},
		"a failure": {func(g *rig) {
			g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "no image"))
		}, "Create Failed  no image"},
		"no effect": {func(g *rig) {
			g.reconcile()
			g.engine.ensure = func(driver.ServerSpec, call) (driver.Server, error) {
				return g.server(), nil
			}
			g.setAction(api.ActionStopped)
		}, "Create Succeeded\nStop Succeeded\nStop Failed  the fake driver reports success, but the server is still Running"},
		"no right to act": {func(g *rig) {
			g.engine.ensure = failWith(driver.Errorf(driver.ErrNotLeading, "the Lease lapsed"))
		}, "Create Ended  the Lease lapsed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.create(framework.NewVM("vm"))
			tc.play(g)
			_, _ = g.pass()
			got := g.outcomes()
			assert.True(t, got == tc.want, "it has\n%s\nwant\n%s\nin\n%s", got, tc.want, decisions.Format(g.r.Decisions.History(key).Decisions...))
		})
	}
}

// TestAnswersOfTheAPIAreNotRecorded checks that only the kind of an error of the API server is
// recorded, since its text may be that of a proxy.
func TestAnswersOfTheAPIAreNotRecorded(t *testing.T) {
	for want, err := range map[string]error{
		"Conflict":      apierrors.NewConflict(api.Resource("virtualmachines"), "vm", errors.New("s3cr3t")),
		"an error":      errors.New("s3cr3t"),
		"InternalError": apierrors.NewInternalError(errors.New("s3cr3t")),
	} {
		g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
		g.requestRestart()
		g.statusErr = err
		_, _ = g.pass()
		all := g.r.Decisions.History(key).Decisions
		got := g.outcomes()
		assert.True(t, strings.HasSuffix(got, "Restart Ended "+want) && !strings.Contains(decisions.Format(all...), "s3cr3t"), "it has %s, want %s", got, want)
	}
}
