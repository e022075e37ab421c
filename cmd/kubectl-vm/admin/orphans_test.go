// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestReadServersAgain checks that looks share a connection, and that a failed one ends nothing.
func TestReadServersAgain(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	var connection atomic.Value // of the last look, by the port of its other end
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isConfig := strings.Contains(r.URL.Path, "/configmaps/"); !isConfig {
			connection.Store(r.RemoteAddr)
			if failing.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		_, _ = io.WriteString(w, "{}\n")
	}))
	defer server.Close()
	o, _ := kittest.NewOptions()
	o.Config.APIServer = &server.URL
	s := &serversOptions{Options: o}
	checkShared := func(when string) {
		// A host that starves for 50 ms makes net/http drop a connection.
		assert.Eventually(t, when+" looks share a connection", func(t testing.TB) error {
			before := connection.Load()
			_, err := s.readServers(t.Context())
			if err == nil && connection.Load() != before {
				err = errors.New("each fails")
			}
			return err
		})
	}
	checkShared("before a failure")
	failing.Store(true)
	_, err := s.readServers(t.Context())
	assert.Require(t, apierrors.IsServiceUnavailable(err), "got %v, want that the service is unavailable", err)
	failing.Store(false)
	checkShared("after it")
}
