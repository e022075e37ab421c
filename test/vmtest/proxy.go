// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Proxy stands before a Docker engine and can be cut, as if the engine was
// stopped.
type Proxy struct {
	t               testing.TB
	path            string
	network, engine string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
}

// NewProxy opens a way to the engine that DOCKER_HOST names.
func NewProxy(t testing.TB) *Proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover-proxy-") //nolint:usetesting // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, path: filepath.Join(dir, "docker.sock"), conns: map[net.Conn]bool{}}
	p.network, p.engine, _ = strings.Cut(Docker(t).DaemonHost(), "://")
	p.Restore()
	t.Cleanup(func() {
		p.Cut()
		_ = os.RemoveAll(dir)
	})
	return p
}

// Env has a program go through the proxy.
func (p *Proxy) Env() []string { return []string{"DOCKER_HOST=unix://" + p.path} }

// Cut breaks what is connected and lets nobody connect.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	_ = p.listener.Close()
	p.listener = nil
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

// Restore brings the engine back.
func (p *Proxy) Restore() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", p.path)
	if err != nil {
		p.t.Fatalf("listening on %s: %v", p.path, err)
	}
	p.listener = l
	go p.accept(l)
}

func (p *Proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go p.serve(c)
	}
}

func (p *Proxy) serve(c net.Conn) {
	e, err := (&net.Dialer{}).DialContext(context.Background(), p.network, p.engine)
	if err != nil || !p.track(c, e) {
		_ = c.Close()
		return
	}
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{c: e, e: c} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_, _ = c.Close(), e.Close()
		})
	}
	both.Wait()
	p.forget(c, e)
}

// track is false when the proxy was cut meanwhile.
func (p *Proxy) track(c, e net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		_ = e.Close()
		return false
	}
	p.conns[c], p.conns[e] = true, true
	return true
}

func (p *Proxy) forget(c, e net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	delete(p.conns, e)
}
