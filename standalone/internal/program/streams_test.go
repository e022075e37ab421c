// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLateStreams checks what streams are answered before the controller serves them.
func TestLateStreams(t *testing.T) {
	t.Parallel()
	late := &LateStreams{}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	before := httptest.NewRecorder()
	late.ServeHTTP(before, request)
	if before.Code != http.StatusServiceUnavailable || before.Header().Get("Retry-After") == "" {
		t.Errorf("before, the answer is %d, Retry-After %q", before.Code, before.Header().Get("Retry-After"))
	}
	late.Set(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	after := httptest.NewRecorder()
	late.ServeHTTP(after, request)
	if after.Code != http.StatusTeapot {
		t.Errorf("after, the answer is %d", after.Code)
	}
}
