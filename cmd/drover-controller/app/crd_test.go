// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestCheckCRD checks that what is missing is named, and that the program stops
// only for what is certainly missing.
func TestCheckCRD(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code   int
		schema string // of the status
		says   string
	}{
		"an older one":   {http.StatusOK, `{"properties": {"phase": {}}}`, "has no status."},
		"not to be read": {http.StatusForbidden, "{}", ""},
		"unreadable":     {http.StatusOK, `[`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/openapi/v3/apis/cloudnative.tw/v1alpha1" {
					t.Errorf("requested %s", r.URL)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.code)
				_, _ = fmt.Fprintf(w, `{"components": {"schemas": {"tw.cloudnative.v1alpha1.VirtualMachine": {"properties": {"status": %s}}}}}`, tc.schema)
			}))
			defer server.Close()
			err := checkCRD(t.Context(), &rest.Config{Host: server.URL}, 3*schemaPollPeriod)
			if (tc.says != "") != errors.Is(err, errOldCRD) || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}
