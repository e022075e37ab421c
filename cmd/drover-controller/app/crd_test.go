// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// TestCheckCRD checks that what is missing is named, and that the program stops
// only for what is certainly missing.
func TestCheckCRD(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code   int
		change func(status *schema)
		says   string
	}{
		"the same":         {code: http.StatusOK, change: func(*schema) {}},
		"a newer one":      {code: http.StatusOK, change: func(s *schema) { s.Properties["later"] = &schema{} }},
		"an older one":     {code: http.StatusOK, change: func(s *schema) { delete(s.Properties, "binding") }, says: "has no status.binding"},
		"a field below":    {code: http.StatusOK, change: func(s *schema) { delete(s.Properties["server"].Properties, "stoppedRun") }, says: "has no status.server.stoppedRun"},
		"a field in items": {code: http.StatusOK, change: func(s *schema) { delete(s.Properties["ports"].Items.Properties, "hostIP") }, says: "has no status.ports[].hostIP"},
		"a value": {code: http.StatusOK, change: func(s *schema) {
			failure := s.Properties["operation"].Properties["failure"]
			failure.Enum = failure.Enum[:1]
		}, says: "has no value Exhausted of status.operation.failure"},
		"not to be read": {code: http.StatusForbidden, change: func(*schema) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, err := builtInStatus()
			if err != nil {
				t.Fatal(err)
			}
			tc.change(status)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/openapi/v3/apis/cloudnative.tw/v1alpha1" {
					t.Errorf("requested %s", r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.code)
				_ = json.NewEncoder(w).Encode(map[string]any{"components": map[string]any{"schemas": map[string]any{
					"tw.cloudnative.v1alpha1.VirtualMachine": map[string]any{"properties": map[string]any{"status": status}},
				}}})
			}))
			defer server.Close()
			err = checkCRD(t.Context(), &rest.Config{Host: server.URL}, 3*schemaPollPeriod)
			if (tc.says != "") != errors.Is(err, errOldCRD) || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

// TestBuiltInStatusHasEveryField checks that the comparison covers all that the
// program can write, at every depth.
func TestBuiltInStatusHasEveryField(t *testing.T) {
	t.Parallel()
	status, err := builtInStatus()
	if err != nil {
		t.Fatal(err)
	}
	for field := range reflect.TypeFor[api.VirtualMachineStatus]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if status.Properties[name] == nil {
			t.Errorf("status.%s is not compared", name)
		}
	}
}
