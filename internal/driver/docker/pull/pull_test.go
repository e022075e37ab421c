// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/jsonstream"

	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/test/assert"
)

// secret is a part of a registry's answers, which must not be shown.
const secret = "hunter2"

func TestExplainError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"manifest for x:1 not found: manifest unknown: " + secret:                "not found",
		"pull access denied for x, repository does not exist: denied: " + secret: "not found, or a login is needed",
		"unauthorized: " + secret:                                                     "unauthorized",
		"error parsing HTTP 403 response body: denied " + secret:                      "access denied",
		"toomanyrequests: " + secret:                                                  "too many requests",
		`Get "https://x/v2/": dial tcp: lookup x: no such host`:                       "name not resolved",
		`Get "https://x/v2/": dial tcp 127.0.0.1:1: connect: connection refused`:      "connection refused",
		`Get "https://x/v2/": http: server gave HTTP response to HTTPS client`:        "the registry does not support TLS",
		"tls: failed to verify certificate: x509: certificate is valid for " + secret: "TLS: the registry's certificate or handshake is not accepted",
		"Client.Timeout exceeded while awaiting headers " + secret:                    "timeout",
		"no matching manifest for linux/amd64 in the manifest list entries":           "the image lacks a variant for this host's platform",
		"write /var/lib/docker/tmp/x: no space left on device":                        "no space left on the engine's disk",
		"filesystem layer verification failed for digest " + secret:                   "content does not match its digest",
		`error parsing HTTP 500 response body: invalid character: "` + secret + `"`:   "the engine's log has the cause",
		"client version 1.2 is too old " + secret:                                     "the engine's log has the cause",
	} {
		for how, err := range map[string]error{
			"an answer":         fmt.Errorf("Error response from daemon: %w", errors.New(text)),
			"one of the stream": &jsonstream.Error{Message: text},
			"unreachable":       fmt.Errorf("%w: %s", errdefs.ErrUnavailable, text),
		} {
			if got := explainError(err); got.Error() != want || engine.IsConnectionLost(got) {
				t.Errorf("%s, %q: it is explained as %q, want %q; lost: %v", how, text, got, want, engine.IsConnectionLost(got))
			}
		}
	}
	got := explainError(&jsonstream.Error{Code: http.StatusTooManyRequests, Message: "too many requests"})
	assert.True(t, got.Error() == "429: too many requests", "with a code it is explained as %q", got)
	got = explainError(fmt.Errorf("%w: %s", errdefs.ErrNotFound, secret))
	assert.True(t, got.Error() == "404: not found", "with a kind it is explained as %q", got)
	// Errors of the client do not contain an answer of a registry.
	for _, err := range []error{&net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}, io.ErrUnexpectedEOF} {
		got := explainError(err)
		assert.True(t, errors.Is(got, err) && engine.IsConnectionLost(got), "%v is explained as %v", err, got)
	}
}

// fetched has how many bytes a pull has received and expects.
type fetched struct{ received, total int64 }

func (f *fetched) Report(string)        {}
func (f *fetched) Received(bytes int64) { f.received += bytes }
func (f *fetched) Expect(total int64) error {
	f.total = total
	return nil
}

// TestReceived checks that the received bytes reach the expected bytes only once every layer is complete, even if the
// registry does not state the size or a layer starts over.
func TestReceived(t *testing.T) {
	t.Parallel()
	p, f := progress{}, &fetched{}
	for _, c := range []struct {
		id, status      string
		current, total  int64
		received, wants int64
	}{
		{"a", "Pulling fs layer", 0, 0, 0, 1},
		{"b", "Downloading", 100, 0, 100, 102},
		{"a", "Downloading", 10, 1000, 110, 1101},
		{"b", "Download complete", 0, 0, 110, 1100},
		{"a", "Downloading", 500, 1000, 600, 1100},
		{"a", "Downloading", 20, 1000, 600, 1100},
		{"a", "Downloading", 600, 1000, 700, 1100},
		{"c", "Downloading", 5, -1, 705, 1106},
		{"a", "Download complete", 0, 0, 1105, 1106},
		{"c", "Downloading", 9, -1, 1109, 1110},
		{"c", "Extracting", 0, 0, 1109, 1109},
	} {
		m := jsonstream.Message{ID: c.id, Status: c.status, Progress: &jsonstream.Progress{Current: c.current, Total: c.total}}
		assert.NoError(t, p.addMessage(m, f))
		assert.True(t, f.received == c.received && f.total == c.wants,
			"after %q of %q: it has received %d of %d bytes, want %d of %d", c.status, c.id, f.received, f.total, c.received, c.wants)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	p := progress{}
	for _, c := range []struct {
		id, status     string
		current, total int64
		want           string
	}{
		{"", "Pulling from library/nginx", 0, 0, "pulling nginx"},
		{"a", "Pulling fs layer", 0, 0, "pulling nginx"},
		{"b", "Waiting", 0, 0, "pulling nginx"},
		{"a", "Downloading", 2_500_000, 10_000_000, "pulling nginx: 25% (2.5/10.0 MB)"},
		{"b", "Downloading", 9_800_000, 26_100_000, "pulling nginx: 34% (12.3/36.1 MB)"},
		{"a", "Verifying Checksum", 0, 0, "pulling nginx: 34% (12.3/36.1 MB)"},
		{"a", "Download complete", 0, 0, "pulling nginx: 54% (19.8/36.1 MB)"},
		{"c", "Already exists", 0, 0, "pulling nginx: 54% (19.8/36.1 MB)"},
		{"b", "Download complete", 0, 0, "pulling nginx: unpacking 36.1 MB"},
		{"a", "Extracting", 100, 10_000_000, "pulling nginx: unpacking 36.1 MB"},
		{"a", "Pull complete", 0, 0, "pulling nginx: unpacking 36.1 MB"},
	} {
		m := jsonstream.Message{ID: c.id, Status: c.status}
		if c.total > 0 {
			m.Progress = &jsonstream.Progress{Current: c.current, Total: c.total}
		}
		assert.NoError(t, p.addMessage(m, &fetched{}))
		assert.Equal(t, fmt.Sprintf("after %q of %q", c.status, c.id), p.describe("nginx"), c.want)
	}
}
