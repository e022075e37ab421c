// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/test/framework"
)

// worldsByName has the worlds that send requests.
type worldsByName struct{ byName sync.Map }

func (s *worldsByName) find(name string) *World {
	w, ok := s.byName.Load(name)
	if !ok {
		return nil
	}
	return w.(*World)
}

// Interceptor is between the processes of a world, which it knows by their numbers from 0
// on, and the API server. It sends a request on, or answers it.
type Interceptor func(process int, req *http.Request, next http.RoundTripper) (*http.Response, error)

// Intercept has all requests of processes go through an Interceptor. No process may run yet.
func (w *World) Intercept(by Interceptor) { w.intercept = by }

// interceptedTransport sends requests through the Interceptors of their worlds.
type interceptedTransport struct{ next http.RoundTripper }

// origin is a context's key for where a request comes from.
type origin struct{}

// sender is a process of a world.
type sender struct {
	world   *World
	process int
}

// RoundTrip implements http.RoundTripper.
func (t interceptedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	from, ok := req.Context().Value(origin{}).(sender)
	if !ok || from.world.intercept == nil {
		return t.next.RoundTrip(req)
	}
	return from.world.intercept(from.process, req, t.next)
}

// newProxy returns a handler that makes two namespaces of the API server look like a
// cluster: one has all VirtualMachines, the other stands for kube-system. The first elements
// of a request's path are the world's name and the process's number.
func newProxy(config *rest.Config, worlds *worldsByName) (http.Handler, error) {
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	forward := &httputil.ReverseProxy{
		Transport: interceptedTransport{transport}, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(server) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		name, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		number, path, _ := strings.Cut(path, "/")
		process, err := strconv.Atoi(number)
		w := worlds.find(name)
		if w == nil || err != nil {
			http.NotFound(rw, req)
			return
		}
		req, end := w.disturbed.begin(req, process)
		if req == nil {
			panic(http.ErrAbortHandler)
		}
		defer end()
		if req.Header.Get("Authorization") != "Bearer "+token {
			http.Error(rw, "the kubeconfig has another token", http.StatusUnauthorized)
			return
		}
		req.Header.Del("Authorization") // the proxy has a certificate
		if w.disturbed.answerBadly(rw, req) {
			return
		}
		w.recordRequest(req.Method, "/"+path)
		req.URL.Path = "/" + path
		if err := (framework.VirtualCluster{Namespace: w.Name, System: w.System}).Redirect(req); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		forward.ServeHTTP(rw, req.WithContext(context.WithValue(req.Context(), origin{}, sender{w, process})))
	}), nil
}
