// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/cert"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

const token = "a-token"

// server counts the requests that carry the token.
type server struct {
	*httptest.Server

	tokens atomic.Int32
}

func serve(t *testing.T, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			s.tokens.Add(1)
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// serveAPI serves the ConfigMap with this address and these certificates.
func serveAPI(t *testing.T, address string, ca []byte) *rest.Config {
	t.Helper()
	api := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/configmaps/drover-streams" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{streams.AddressKey: address, streams.CAKey: string(ca)}})
	})
	return &rest.Config{Host: api.URL, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: api.ca()}}
}

// TestCredentials checks that a token goes to the address of the ConfigMap, if its
// certificate is the one named there, and from there nowhere else.
func TestCredentials(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "stolen") })
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/moved/") {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("Authorization")) //nolint:gosec // no browser asks
	})
	client, err := Discover(t.Context(), serveAPI(t, target.URL, target.ca()))
	assert.NoError(t, err)
	body, err := client.Get(t.Context(), "ns", "vm", streams.Log, nil)
	assert.NoError(t, err)
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	want := "/streams.cloudnative.tw/v1alpha1/namespaces/ns/virtualmachines/vm/log Bearer " + token
	assert.True(t, err == nil && string(text) == want, "the server was asked %q, %v, want %q", text, err, want)
	assert.ErrorSays(t, "a redirect", assert.ErrorOf(client.Get(t.Context(), "moved", "vm", streams.Log, nil)), "307")

	client, err = Discover(t.Context(), serveAPI(t, elsewhere.URL, otherCA(t)))
	assert.NoError(t, err)
	assert.ErrorSays(t, "a server with another certificate", assert.ErrorOf(client.Get(t.Context(), "ns", "vm", streams.Log, nil)), "certificate")
	n := elsewhere.tokens.Load()
	assert.True(t, n == 0, "the token went to another address %d times", n)
}

// TestBadConfigMap checks that an address which could be listened to is refused.
func TestBadConfigMap(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ address, ca, want string }{
		"plain HTTP":     {"http://drover.example", "x", "https"},
		"no host":        {"https://", "x", "https"},
		"a user":         {"https://a@drover.example", "x", "https"},
		"no certificate": {"https://drover.example", "", streams.CAKey},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Discover(t.Context(), serveAPI(t, test.address, []byte(test.ca)))
			assert.ErrorSays(t, name, err, test.want)
		})
	}
	t.Run("impersonation", func(t *testing.T) {
		t.Parallel()
		config := serveAPI(t, "https://drover.example", []byte("x"))
		config.Impersonate.UserName = "someone"
		assert.ErrorSays(t, "impersonation", assert.ErrorOf(Discover(t.Context(), config)), "--as")
	})
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		api := serve(t, http.NotFound)
		config := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: api.ca()}}
		assert.ErrorSays(t, "no ConfigMap", assert.ErrorOf(Discover(t.Context(), config)), "--streams-address")
	})
}

func otherCA(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	assert.NoError(t, err)
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "another"}, key)
	assert.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
}

// TestNotServed checks that a server which does not know the path of streams is not taken for
// one that does not know the VM.
func TestNotServed(t *testing.T) {
	t.Parallel()
	isKnown := func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/known/") }
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !isKnown(r) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		status := apierrors.NewNotFound(schema.GroupResource{Resource: "virtualmachines"}, "vm").ErrStatus
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		_ = json.NewEncoder(w).Encode(status)
	})
	client, err := Discover(t.Context(), serveAPI(t, target.URL, target.ca()))
	assert.NoError(t, err)
	for namespace, message := range map[string]string{"known": `"vm" not found`, "ns": "no Drover serves consoles"} {
		_, err := client.Get(t.Context(), namespace, "vm", streams.Log, nil)
		for kind, err := range map[string]error{"Get": err, "Connect": client.Connect(t.Context(), client.URL(namespace, "vm", streams.Console, nil), remotecommand.StreamOptions{Stdout: io.Discard})} {
			if err = Cause(err); err == nil || !strings.Contains(err.Error(), message) || apierrors.IsNotFound(err) != (namespace == "known") {
				t.Errorf("%s in %s gives %v, want %q", kind, namespace, err, message)
			}
		}
	}
}

// TestConsoleReturns checks that a console is tried again while the API server does not answer
// who the user is, and not with credentials that it has refused.
func TestConsoleReturns(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]bool{http.StatusServiceUnavailable: true, http.StatusTooManyRequests: true, http.StatusUnauthorized: false} {
		target := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(code)
			status := apierrors.NewGenericServerResponse(code, "get", schema.GroupResource{}, "", "", 5, true).ErrStatus
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			_ = json.NewEncoder(w).Encode(status)
		})
		client, err := Discover(t.Context(), serveAPI(t, target.URL, target.ca()))
		assert.NoError(t, err)
		err = client.Connect(t.Context(), client.URL("ns", "vm", streams.Console, nil), remotecommand.StreamOptions{Stdout: io.Discard})
		got := (&ConsoleSession{}).mayReconnect(err)
		assert.True(t, got == want, "after %v it is tried again: %t, want %t", err, got, want)
	}
}
