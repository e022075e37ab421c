// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"

	"cloudnative.tw/drover/config/crd"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testOlderCRD checks that a controller refuses an older CRD and names the missing field, until the CRD has it.
// The controller starts without selectable fields: it does not use them, and API servers before 1.31 drop them.
func testOlderCRD(t *testing.T, w *testenv.Environment) {
	const version, field = "/spec/versions/0", "status.server.stoppedRun"
	remove := func(path string) {
		t.Helper()
		patch := fmt.Sprintf(`[{"op":"remove","path":%q}]`, version+path)
		framework.RunKubectl(t, w.Kubeconfig, "patch", "crd", "virtualmachines.cloudnative.tw", "--type=json", "--patch", patch)
	}
	remove("/schema/openAPIV3Schema/properties/" + strings.ReplaceAll(field, ".", "/properties/"))
	waitForMissing(t, w, field)
	c := w.StartControllerProcess(t, nil)
	assert.Eventually(t, "the controller ends", func(testing.TB) error {
		return assert.ErrorUnless(c.HasEnded(), "the controller still runs")
	})
	out := c.Output()
	assert.True(t, strings.Contains(out, "no "+field) && !strings.Contains(out, "Starting workers"), "the controller printed:\n%s", out)
	framework.RunKubectl(t, w.Kubeconfig, "replace", "-f", configPath("crd/cloudnative.tw_virtualmachines.yaml"))
	remove("/selectableFields")
	waitForMissing(t, w, "")
	w.WaitForLog(t, w.StartControllerProcess(t, nil), "Starting workers")
}

// waitForMissing waits until the schema that the API server publishes lacks a field, or no field: it
// publishes the schema of a CRD some time after the CRD was changed.
func waitForMissing(t *testing.T, w *testenv.Environment, want string) {
	t.Helper()
	assert.Eventually(t, "the schema is published", func(t testing.TB) error {
		missing, isServed, err := crd.FindMissing(t.Context(), w.KubeClient.Discovery().RESTClient())
		if err != nil || !isServed || missing != want {
			return fmt.Errorf("served %t, missing %q, want %q: %w", isServed, missing, want, err)
		}
		return nil
	})
}
