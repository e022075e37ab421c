// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// engineProxy forwards to the engine's socket. It can be cut, counts requests, and can
// answer in the engine's place.
type engineProxy struct {
	t      *testing.T
	path   string
	engine *httputil.ReverseProxy

	mu       sync.Mutex
	server   *http.Server
	upgraded []net.Conn // which the server does not close
	requests []string
	// interceptor answers a request and returns true, or leaves it to the engine.
	interceptor func(w http.ResponseWriter, r *http.Request) bool
}

func newProxy(t *testing.T) *engineProxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover-proxy-") //nolint:usetesting // t.TempDir may be too long for a socket
	assert.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &engineProxy{t: t, path: filepath.Join(dir, "docker.sock"), engine: newReverseProxy(guestImages(t).client.DaemonHost())}
	p.reconnect()
	t.Cleanup(p.disconnect)
	return p
}

func newReverseProxy(host string) *httputil.ReverseProxy {
	network, address, _ := strings.Cut(host, "://")
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	p.FlushInterval = -1 // events and progress at once
	p.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	p.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	return p
}

func (p *engineProxy) host() string { return "unix://" + p.path }

// disconnect cuts all connections and refuses new ones.
func (p *engineProxy) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.server.Close()
	for _, c := range p.upgraded {
		_ = c.Close()
	}
	p.upgraded = nil
}

func (p *engineProxy) reconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", p.path)
	if err != nil {
		p.t.Errorf("listening on %s: %v", p.path, err)
		return
	}
	p.server = &http.Server{Handler: p, ErrorLog: nil, ConnState: p.noteUpgrade} //nolint:gosec // the socket of a test
	go func(s *http.Server) { _ = s.Serve(l) }(p.server)
}

func (p *engineProxy) noteUpgrade(c net.Conn, state http.ConnState) {
	if state != http.StateHijacked {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upgraded = append(p.upgraded, c)
}

func (p *engineProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests = append(p.requests, r.Method+" "+r.URL.Path)
	instead := p.interceptor
	p.mu.Unlock()
	if instead == nil || !instead(w, r) {
		p.engine.ServeHTTP(w, r)
	}
}

func (p *engineProxy) intercept(instead func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.interceptor = instead
}

// countRequests returns how many of the requests since resetRequests had that method, and
// that text in their path.
func (p *engineProxy) countRequests(method, text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.requests {
		if m, path, _ := strings.Cut(r, " "); m == method && strings.Contains(path, text) {
			n++
		}
	}
	return n
}

func (p *engineProxy) resetRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = nil
}
