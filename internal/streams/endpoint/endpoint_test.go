// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// TestBody checks that a request which announces a body does not hold its connection.
func TestBody(t *testing.T) {
	t.Parallel()
	stranger := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil })
	server := httptest.NewServer(&clients{Request: stranger, log: logr.Discard()})
	t.Cleanup(server.Close)
	for _, header := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://")) //nolint:noctx // a test of one connection
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", header)
		all, err := io.ReadAll(bufio.NewReader(conn)) // until the server closes
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 400 ") || !strings.Contains(string(all), "the request has a body") {
			t.Errorf("%s is answered %q, %v", header, all, err)
		}
	}
}
