// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestFindMissing checks that the first thing that is missing is named, at every depth.
func TestFindMissing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(status *schema)
		want   string
	}{
		"the same":         {func(*schema) {}, ""},
		"a newer one":      {func(s *schema) { s.Properties["later"] = &schema{} }, ""},
		"an older one":     {func(s *schema) { delete(s.Properties, "binding") }, "status.binding"},
		"a field below":    {func(s *schema) { delete(s.Properties["server"].Properties, "stoppedRun") }, "status.server.stoppedRun"},
		"a field in items": {func(s *schema) { delete(s.Properties["ports"].Items.Properties, "hostIP") }, "status.ports[].hostIP"},
		"a value": {func(s *schema) {
			failure := s.Properties["operation"].Properties["failure"]
			failure.Enum = failure.Enum[:1]
		}, "value Exhausted of status.operation.failure"},
	} {
		status, err := builtInStatus()
		assert.NoError(t, err)
		tc.change(status)
		client := serveSchemas(t, map[string]any{"tw.cloudnative.v1alpha1.VirtualMachine": map[string]any{"properties": map[string]any{"status": status}}})
		got, isServed, err := FindMissing(t.Context(), client)
		assert.True(t, got == tc.want && isServed && err == nil, "%s: got %q, %v, %v, want %q", name, got, isServed, err, tc.want)
	}
	got, isServed, err := FindMissing(t.Context(), serveSchemas(t, nil))
	assert.True(t, got == "" && !isServed && err == nil, "of a server without VirtualMachines: %q, %v, %v", got, isServed, err)
}

func serveSchemas(t *testing.T, schemas map[string]any) rest.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.True(t, r.URL.Path == "/openapi/v3/apis/cloudnative.tw/v1alpha1", "requested %s", r.URL)
		w.Header().Set("Content-Type", "application/json")
		if schemas == nil {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"components": map[string]any{"schemas": schemas}})
	}))
	t.Cleanup(server.Close)
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	assert.NoError(t, err)
	return client.RESTClient()
}

// TestBuiltInStatusHasEveryField checks that the comparison covers all that the
// program can write, at every depth.
func TestBuiltInStatusHasEveryField(t *testing.T) {
	t.Parallel()
	status, err := builtInStatus()
	assert.NoError(t, err)
	for field := range reflect.TypeFor[api.VirtualMachineStatus]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		assert.True(t, status.Properties[name] != nil, "status.%s is not compared", name)
	}
}
