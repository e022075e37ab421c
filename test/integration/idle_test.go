// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

const (
	idleVMs = 30
	// idleRounds is how many lists and samples are made while VMs are idle: one of each a second.
	idleRounds = 10
)

// TestIdleVMsWriteNothing checks that the controller writes nothing to idle VMs and events
// while it regularly lists and samples the engine.
func TestIdleVMsWriteNothing(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	controller := w.StartControllerProcess(t, nil, "--vm-driver=fake", "--usage-period=1s", "--list-period=1s", "--orphan-grace=1s", testenv.AnyMetricsAddress)
	var vms []*api.VirtualMachine
	for n := range idleVMs {
		vms = append(vms, w.CreateVM(t, newSmallVM(fmt.Sprintf("idle-%d", n), "default", "fake")))
	}
	for _, vm := range vms {
		w.WaitForVM(t, vm, framework.IsActive, framework.HasUsage)
	}
	assert.Eventually(t, "the last event is written", func(t testing.TB) error {
		created := map[types.UID]bool{}
		for _, e := range w.ListEvents(t, nil) {
			if e.Regarding.Namespace == w.Namespace {
				created[e.Regarding.UID] = true
			}
		}
		return assert.ErrorUnless(len(created) >= idleVMs, "events of %d VMs", len(created))
	})
	waitForRounds(t, controller, 2)
	before := w.CountWrites()
	waitForRounds(t, controller, idleRounds)
	more := w.CountWrites() - before
	assert.True(t, more == 0, "%d writes in %d rounds", more, idleRounds)
}

// waitForRounds waits until the engine was listed and sampled more times.
func waitForRounds(t *testing.T, c *testenv.ControllerProcess, more float64) {
	t.Helper()
	count := func(t testing.TB) float64 {
		page, called := c.ReadMetrics(t), "drover_driver_call_duration_seconds_count"
		return min(page.Sum(called, `method="List"`), page.Sum(called, `method="Usage"`))
	}
	until := count(t) + more
	assert.Eventually(t, "more lists and samples", func(t testing.TB) error {
		if now := count(t); now < until {
			return fmt.Errorf("%v, want %v", now, until)
		}
		return nil
	})
}
