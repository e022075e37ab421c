// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	client "cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
)

// TestTransientErrors checks which answers of an API server a wait tries again after.
func TestTransientErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      http.HandlerFunc
		isTransient bool
		isHTTP2     bool
	}{
		"the answer is cut off":         {answer: cutOff, isTransient: true},
		"the answer is cut off, HTTP/2": {answer: cutOff, isTransient: true, isHTTP2: true},
		"the server shuts down, HTTP/2": {answer: shutDown, isTransient: true, isHTTP2: true},
		"overload":                      {answer: answerWith(http.StatusTooManyRequests), isTransient: true},
		"starting":                      {answer: answerWith(http.StatusInternalServerError), isTransient: true},
		"forbidden":                     {answer: answerWith(http.StatusForbidden)},
		"another kind of server":        {answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewUnstartedServer(c.answer)
			s.EnableHTTP2 = c.isHTTP2
			s.StartTLS()
			t.Cleanup(s.Close)
			vms, err := client.NewForConfig(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			assert.NoError(t, err)
			_, err = vms.CloudnativeV1alpha1().VirtualMachines("default").List(t.Context(), metav1.ListOptions{})
			assert.Require(t, err != nil, "the list succeeded")
			assert.True(t, isTransient(err) == c.isTransient, "got %v: transient is %t, want %t", err, !c.isTransient, c.isTransient)
		})
	}
}

// cutOff sends the beginning of an answer, and ends the connection.
func cutOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"kind":`))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// shutDown sends the beginning of an answer, announces the end of all connections, and ends them.
func shutDown(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"kind":`))
	_ = http.NewResponseController(w).Flush()
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	_ = server.Shutdown(ctx) // it sends GOAWAY, and waits for this answer until ctx ends
	_ = server.Close()
	<-r.Context().Done()
}

func answerWith(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}
