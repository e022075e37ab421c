// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// recordFirst returns calls of a driver that has another object recorded each time, but for the calls
// after the first ones.
func (g *rig) recordFirst(times int, failure error) func(driver.ServerSpec, call) (driver.Server, error) {
	return func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if g.engine.calls <= times {
			return driver.Server{}, &driver.RecordFirstError{Objects: []driver.Object{{Kind: "Pod", Name: "vm", Nonce: strconv.Itoa(g.engine.calls)}}, Failure: failure}
		}
		s, err := live()
		s.Objects = spec.Objects
		return s, err
	}
}

const forever = 1 << 30

// TestRecordingsWithoutEnd checks that steps which have objects recorded and do nothing else back off like
// failures, and say why.
func TestRecordingsWithoutEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		failure error
		prunes  bool
		calls   int // until the first wait
		says    string
	}{
		"for no reason":                  {nil, false, 4, "had objects recorded in the status 4 times in a row"},
		"after a failure":                {errors.New("the Secret is taken"), false, 1, "the Secret is taken"},
		"with a CRD that prunes objects": {nil, true, 1, "apply the CRD"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.create(framework.NewVM("vm"))
			g.engine.ensure, g.prunesObjects = g.recordFirst(forever, tc.failure), tc.prunes
			for n, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
				if result := g.reconcile(); result.RequeueAfter != want || g.engine.calls != (n+1)*tc.calls {
					t.Fatalf("failure %d: %d calls, and the next try in %s, want %d and %s", n+1, g.engine.calls, result.RequeueAfter, (n+1)*tc.calls, want)
				}
				g.clock.Step(want)
			}
			op := g.vm().Status.Operation
			assert.True(t, strings.Contains(op.LastError, tc.says) && op.Attempts == 3, "operation %+v, want an error that says %q", op, tc.says)
		})
	}
}

// TestRecordingsOfACreation checks that a creation, and a start after a crash, which have objects recorded,
// do not wait.
func TestRecordingsOfACreation(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.engine.ensure = g.recordFirst(3, nil)
	if result, err := g.pass(); err != nil || result.RequeueAfter != 0 || g.engine.calls != 4 {
		t.Errorf("%d calls, and the next one in %s, want four in one pass: %v", g.engine.calls, result.RequeueAfter, err)
	}
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.clock.Step(time.Minute)
	g.crashNow(0)
	began := g.engine.calls
	g.engine.ensure = g.recordFirst(began+3, nil)
	if result, err := g.pass(); err != nil || g.engine.calls != began+4 {
		t.Errorf("%d calls after a crash, and the next one in %s, want four in one pass: %v", g.engine.calls-began, result.RequeueAfter, err)
	}
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}
