// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// etcdLink is between an API server and etcd. It can withhold what watches of
// VirtualMachines deliver, while all other calls go on.
type etcdLink struct {
	server *http.Server
	served net.Listener

	mu      sync.Mutex
	flowing chan struct{} // closed while nothing is withheld
}

// vmsPrefix is that of the keys of VirtualMachines.
const vmsPrefix = "/registry/cloudnative.tw/"

// openEtcdLink opens a socket in front of that of an etcd. The caller must Close it.
func openEtcdLink(socket, etcd string) (*etcdLink, error) {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	forward := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "etcd"}) },
	}
	dialer := &net.Dialer{}
	forward.Transport = &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", etcd)
	}}
	l := &etcdLink{flowing: make(chan struct{})}
	close(l.flowing)
	var err error
	if l.served, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", socket); err != nil {
		return nil, err
	}
	l.server = &http.Server{Protocols: protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "Watch/Watch") {
			of := &watchedKeys{ReadCloser: req.Body}
			req.Body, rw = of, &heldWriter{rw, l, of, req.Context()}
		}
		forward.ServeHTTP(rw, req)
	})}
	go func() { _ = l.server.Serve(l.served) }()
	return l, nil
}

// Close ends all connections.
func (l *etcdLink) Close() error {
	l.resume()
	return l.server.Close()
}

// halt withholds what watches of VirtualMachines deliver from now on.
func (l *etcdLink) halt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.flowing) {
		l.flowing = make(chan struct{})
	}
}

// resume delivers what was withheld.
func (l *etcdLink) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isClosed(l.flowing) {
		close(l.flowing)
	}
}

func (l *etcdLink) awaitFlowing(ctx context.Context) error {
	l.mu.Lock()
	flowing := l.flowing
	l.mu.Unlock()
	select {
	case <-flowing:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchedKeys is the requests of a stream of watches, and notes what they are of.
type watchedKeys struct {
	io.ReadCloser
	ofVMs atomic.Bool
}

// Read implements io.Reader. A request is in one message, whose key is in clear.
func (w *watchedKeys) Read(to []byte) (int, error) {
	n, err := w.ReadCloser.Read(to)
	if bytes.Contains(to[:n], []byte(vmsPrefix)) {
		w.ofVMs.Store(true)
	}
	return n, err
}

// heldWriter is the answers of a stream of watches.
type heldWriter struct {
	http.ResponseWriter
	link *etcdLink
	of   *watchedKeys
	ctx  context.Context //nolint:containedctx // that of the request, as in http.Request
}

// Write implements io.Writer.
func (w *heldWriter) Write(content []byte) (int, error) {
	if w.of.ofVMs.Load() {
		if err := w.link.awaitFlowing(w.ctx); err != nil {
			return 0, errors.Join(err, errCut)
		}
	}
	return w.ResponseWriter.Write(content)
}

// Unwrap lets the answers be flushed.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
