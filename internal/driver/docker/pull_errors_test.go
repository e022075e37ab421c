// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/go-logr/logr/funcr"
	"github.com/moby/moby/api/types/jsonstream"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// secret is what a registry answers, and must not be shown.
const secret = "hunter2"

func TestExplainPull(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"manifest for x:1 not found: manifest unknown: " + secret:                "not found",
		"pull access denied for x, repository does not exist: denied: " + secret: "not found, or a login is needed",
		"unauthorized: " + secret:                                                     "unauthorized",
		"error parsing HTTP 403 response body: denied " + secret:                      "access denied",
		"toomanyrequests: " + secret:                                                  "too many requests",
		`Get "https://x/v2/": dial tcp: lookup x: no such host`:                       "name not resolved",
		`Get "https://x/v2/": dial tcp 127.0.0.1:1: connect: connection refused`:      "connection refused",
		`Get "https://x/v2/": http: server gave HTTP response to HTTPS client`:        "TLS: the registry does not speak it",
		"tls: failed to verify certificate: x509: certificate is valid for " + secret: "TLS: the registry's certificate or handshake is not accepted",
		"Client.Timeout exceeded while awaiting headers " + secret:                    "timeout",
		"no matching manifest for linux/amd64 in the manifest list entries":           "the image is not there for this host's platform",
		"write /var/lib/docker/tmp/x: no space left on device":                        "no space left on the engine's disk",
		"filesystem layer verification failed for digest " + secret:                   "it is not what its digest says",
		`error parsing HTTP 500 response body: invalid character: "` + secret + `"`:   "the engine's log has the cause",
		"client version 1.2 is too old " + secret:                                     "the engine's log has the cause",
	} {
		for how, err := range map[string]error{
			"an answer":         fmt.Errorf("Error response from daemon: %w", errors.New(text)),
			"one of the stream": &jsonstream.Error{Message: text},
			"out of reach":      fmt.Errorf("%w: %s", errdefs.ErrUnavailable, text),
		} {
			if got := explainPull(err); got.Error() != want || engine.IsConnectionLost(got) {
				t.Errorf("%s, %q: it is told as %q, want %q; lost: %v", how, text, got, want, engine.IsConnectionLost(got))
			}
		}
	}
	if got := explainPull(&jsonstream.Error{Code: http.StatusTooManyRequests, Message: "too many requests"}); got.Error() != "429: too many requests" {
		t.Errorf("with a code it is told as %q", got)
	}
	if got := explainPull(fmt.Errorf("%w: %s", errdefs.ErrNotFound, secret)); got.Error() != "404: not found" {
		t.Errorf("with a kind it is told as %q", got)
	}
	// The client's own errors are not from a registry.
	for _, err := range []error{&net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}, io.ErrUnexpectedEOF} {
		if got := explainPull(err); !errors.Is(got, err) || !engine.IsConnectionLost(got) {
			t.Errorf("%v is told as %v", err, got)
		}
	}
}

// TestPullErrorsHideAnswers checks that a registry's answer is neither in an error nor in the
// log, whether it is in the engine's answer or in a message of its stream.
func TestPullErrorsHideAnswers(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	d := newDriver(t, Options{Log: funcr.New(func(prefix, args string) { log.WriteString(prefix + args) }, funcr.Options{Verbosity: 9})})
	registry := newLeakingRegistry(t)
	spec := newSpec(t, d, registry+"/x/y:1")
	mustEnsure(t, d, spec)
	s := awaitListed(t, d, spec.UID, "the failure", func(s driver.Server) bool { return s.Err != nil })
	_, err := d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrRetry, driver.ReasonImageUnavailable, registry)
	if all := fmt.Sprint(s, s.Err, err, log.String()); strings.Contains(all, secret) {
		t.Errorf("it tells: %s", all)
	}
	p := newProxy(t)
	p.interceptor = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/images/create") {
			return false
		}
		_, _ = io.WriteString(w, `{"errorDetail":{"code":401,"message":"unauthorized: `+secret+`"},"error":"`+secret+`"}`)
		return true
	}
	streamed := newDriver(t, Options{Host: p.host()})
	spec = newSpec(t, streamed, registry+"/x/y:2")
	mustEnsure(t, streamed, spec)
	s = awaitListed(t, streamed, spec.UID, "the failure", func(s driver.Server) bool { return s.Err != nil })
	if got := s.Err.Error(); !strings.HasSuffix(got, "401: unauthorized") {
		t.Errorf("it tells %q", got)
	}
}

// newLeakingRegistry starts a registry that answers more than it should.
func newLeakingRegistry(t *testing.T) (host string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"errors":[{"code":"DENIED","message":"`+secret+`","detail":"`+secret+`"}]}`)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestImageURLIsHidden checks that an invalid image reference is not repeated, because it may
// have a user and a password.
func TestImageURLIsHidden(t *testing.T) {
	t.Parallel()
	d := &Driver{Options: Options{Image: DefaultImage}}
	err := d.checkSpec(guestSpec("https://user:" + secret + "@registry.example/x"))
	wantError(t, err, driver.ErrInvalid, "", `begins with "https://"`)
	if strings.Contains(err.Error(), secret) {
		t.Errorf("it tells: %v", err)
	}
}
