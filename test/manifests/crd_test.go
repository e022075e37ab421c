// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"cloudnative.tw/drover/config/crd"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testOlderCRD checks that a controller refuses an older CRD and names what is missing, until the CRD has it.
// Without selectable fields, which the controller does not use and API servers before 1.31 drop, it starts.
func testOlderCRD(t *testing.T, w *testenv.Environment) {
	all, err := dynamic.NewForConfig(w.Config)
	assert.NoError(t, err)
	definitions := all.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	edit := func(change func(version map[string]any)) {
		t.Helper()
		crd, err := definitions.Get(t.Context(), "virtualmachines.cloudnative.tw", metav1.GetOptions{})
		assert.NoError(t, err)
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		assert.NoError(t, err)
		change(versions[0].(map[string]any))
		assert.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
		if _, err := definitions.Update(context.WithoutCancel(t.Context()), crd, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	field := []string{"schema", "openAPIV3Schema", "properties", "status", "properties", "server", "properties", "stoppedRun"}
	var removed map[string]any
	edit(func(version map[string]any) {
		removed, _, _ = unstructured.NestedMap(version, field...)
		unstructured.RemoveNestedField(version, field...)
		if _, ok := version["selectableFields"]; !ok {
			t.Error("the CRD has no selectable fields that could be missing")
		}
		delete(version, "selectableFields")
	})
	waitForMissing(t, w, "status.server.stoppedRun")
	c := w.StartControllerProcess(t, nil)
	assert.Eventually(t, "the controller ends", func(testing.TB) error {
		if !c.HasEnded() {
			return errors.New("it runs")
		}
		return nil
	})
	if out := c.Output(); !strings.Contains(out, "no status.server.stoppedRun") || strings.Contains(out, "Starting workers") {
		t.Errorf("it printed:\n%s", out)
	}
	edit(func(version map[string]any) {
		assert.NoError(t, unstructured.SetNestedMap(version, removed, field...))
	})
	waitForMissing(t, w, "")
	w.WaitForLog(t, w.StartControllerProcess(t, nil), "Starting workers")
}

// waitForMissing waits until the API server shows that a field is missing, or none: it publishes
// the schema of a CRD some time after the CRD was changed.
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
