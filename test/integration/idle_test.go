// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

const (
	idleVMs  = 100
	idleTime = 30 * time.Second
)

// TestIdleVMsWriteNothing : in half a minute of 100 idle VMs the API server counts
// no write to VMs or events. Lists and samples are as frequent as they can be.
func TestIdleVMsWriteNothing(t *testing.T) {
	t.Parallel()
	w := testenv.Start(t)
	w.RunController(t, "--vm-driver=fake", "--usage-period=1s", "--list-period=1s", "--orphan-grace=1s")
	var vms []*api.VirtualMachine
	for n := range idleVMs {
		vms = append(vms, w.CreateVM(t, newSmallVM(fmt.Sprintf("idle-%d", n), "default", "fake")))
	}
	for _, vm := range vms {
		w.WaitForVM(t, vm, framework.IsActive, framework.HasUsage)
	}
	before := waitUntilIdle(t, w)
	framework.Consistently(t, idleTime, 5*time.Second, "nothing is written", func() error {
		if now := countWrites(t, w); now != before {
			return fmt.Errorf("%v writes more", now-before)
		}
		return nil
	})
}

// waitUntilIdle waits until what was written last, events among it, is counted.
func waitUntilIdle(t *testing.T, w *testenv.Environment) float64 {
	t.Helper()
	last, since := -1.0, time.Now()
	assert.Eventually(t, "10 s without a write", func(t testing.TB) error {
		if now := countWrites(t, w); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 10*time.Second {
			return fmt.Errorf("%v writes, the last one %s ago", last, quiet)
		}
		return nil
	})
	return last
}

// countWrites counts, in the API server, the writes to VMs and events.
func countWrites(t testing.TB, w *testenv.Environment) (sum float64) {
	t.Helper()
	page := w.ReadAPIMetrics(t)
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		for _, resource := range []string{"virtualmachines", "events"} {
			sum += page.Sum("apiserver_request_total", fmt.Sprintf("verb=%q", verb), fmt.Sprintf("resource=%q", resource))
		}
	}
	return sum
}
