// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"bytes"
	"context"
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
	*http.Server
	// stalled is locked for writing while what watches deliver is withheld.
	stalled sync.RWMutex
}

// vmsPrefix is that of the keys of VirtualMachines.
const vmsPrefix = "/registry/cloudnative.tw/"

// openEtcdLink opens a socket in front of that of an etcd. The caller must Close it, which ends all
// connections.
func openEtcdLink(socket, etcd string) (*etcdLink, error) {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	forward := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "etcd"}) },
		Transport: &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", etcd)
		}},
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, err
	}
	l := &etcdLink{}
	l.Server = &http.Server{Protocols: protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "Watch/Watch") {
			of := &watchedKeys{ReadCloser: req.Body}
			req.Body, rw = of, &heldWriter{rw, l, of}
		}
		forward.ServeHTTP(rw, req)
	})}
	go func() { _ = l.Serve(listener) }()
	return l, nil
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
}

// Write implements io.Writer.
func (w *heldWriter) Write(content []byte) (int, error) {
	if w.of.ofVMs.Load() {
		w.link.stalled.RLock()
		defer w.link.stalled.RUnlock()
	}
	return w.ResponseWriter.Write(content)
}

// Unwrap lets the answers be flushed.
func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
