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
)

// proxy forwards to the engine's socket. It can be cut, counts requests, and can
// answer in the engine's place.
type proxy struct {
	t      *testing.T
	path   string
	engine *httputil.ReverseProxy

	mu     sync.Mutex
	server *http.Server
	passed []string
	// instead answers a request and returns true, or leaves it to the engine.
	instead func(w http.ResponseWriter, r *http.Request) bool
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover-proxy-") //nolint:usetesting // t.TempDir may be too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &proxy{t: t, path: filepath.Join(dir, "docker.sock"), engine: toEngine(guestImages(t).client.DaemonHost())}
	p.restore()
	t.Cleanup(p.lose)
	return p
}

func toEngine(host string) *httputil.ReverseProxy {
	network, address, _ := strings.Cut(host, "://")
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	p.FlushInterval = -1 // events and progress at once
	p.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	p.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	return p
}

func (p *proxy) host() string { return "unix://" + p.path }

// lose cuts all connections and refuses new ones.
func (p *proxy) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.server.Close()
}

func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", p.path)
	if err != nil {
		p.t.Errorf("listening on %s: %v", p.path, err)
		return
	}
	p.server = &http.Server{Handler: p, ErrorLog: nil} //nolint:gosec // a test's own socket
	go func(s *http.Server) { _ = s.Serve(l) }(p.server)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.passed = append(p.passed, r.Method+" "+r.URL.Path)
	instead := p.instead
	p.mu.Unlock()
	if instead == nil || !instead(w, r) {
		p.engine.ServeHTTP(w, r)
	}
}

func (p *proxy) answer(instead func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instead = instead
}

// count returns how many of the requests since forget had that method, and that
// text in their path.
func (p *proxy) count(method, text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.passed {
		if m, path, _ := strings.Cut(r, " "); m == method && strings.Contains(path, text) {
			n++
		}
	}
	return n
}

func (p *proxy) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = nil
}
