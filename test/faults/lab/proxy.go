// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/test/framework"
)

// worldsByName has the worlds whose requests the proxy forwards.
type worldsByName struct{ byName sync.Map }

func (s *worldsByName) findWorld(name string) *World {
	w, ok := s.byName.Load(name)
	if !ok {
		return nil
	}
	return w.(*World)
}

// Interceptor is between the processes of a world and the API server. It forwards a request
// or answers it. The first process is 0.
type Interceptor func(process int, req *http.Request, next http.RoundTripper) (*http.Response, error)

// Intercept sets the Interceptor of all requests of processes. Call it before any process runs.
func (w *World) Intercept(interceptor Interceptor) { w.intercept = interceptor }

// interceptedTransport sends requests through the Interceptors of their worlds.
type interceptedTransport struct{ next http.RoundTripper }

// origin is the key under which a request's context has its sender.
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
// cluster: one has all VirtualMachines, the other replaces kube-system. The first elements
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
		w := worlds.findWorld(name)
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
		req.Header.Del("Authorization") // the proxy uses a certificate
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

// BadAnswer returns the status code with which the proxy answers a request of a controller
// in place of the API server, or 0 to forward it.
type BadAnswer func(method string) int

// disturbance is a defect of the API server that only the controllers of a world see, not
// its users.
type disturbance struct {
	mu       sync.Mutex
	isCut    bool
	isolated map[int]bool // processes, by number
	answer   BadAnswer
	requests map[*http.Request]ongoing
}

// ongoing is a request of a process.
type ongoing struct {
	process int
	end     context.CancelFunc
}

// Isolate ends the connections of a process to the API server, and refuses new ones.
func (w *World) Isolate(process int) {
	d := &w.disturbed
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isolated == nil {
		d.isolated = map[int]bool{}
	}
	d.isolated[process] = true
	for _, request := range d.requests {
		if request.process == process {
			request.end()
		}
	}
}

// CutAPI ends all connections of the controllers to the API server, and refuses new ones until
// restore is called.
func (w *World) CutAPI() (restore func()) {
	d := &w.disturbed
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isCut = true
	for _, request := range d.requests {
		request.end()
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.isCut = false
	}
}

// AnswerBadly gives requests bad answers until restore is called, except requests for
// Leases, events and watches.
func (w *World) AnswerBadly(choose BadAnswer) (restore func()) {
	w.disturbed.setAnswer(choose)
	return func() { w.disturbed.setAnswer(nil) }
}

func (d *disturbance) setAnswer(choose BadAnswer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = choose
}

// begin returns a copy of the request that ends when the API server is cut off. It returns
// nil if the API server is cut off already.
func (d *disturbance) begin(req *http.Request, process int) (undisturbed *http.Request, end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isCut || d.isolated[process] {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(req.Context())
	req = req.WithContext(ctx)
	if d.requests == nil {
		d.requests = map[*http.Request]ongoing{}
	}
	d.requests[req] = ongoing{process, cancel}
	return req, func() {
		cancel()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.requests, req)
	}
}

// answerBadly answers a request, or returns false if it should be forwarded.
func (d *disturbance) answerBadly(rw http.ResponseWriter, req *http.Request) bool {
	d.mu.Lock()
	choose := d.answer
	d.mu.Unlock()
	if choose == nil || strings.Contains(req.URL.Path, "/leases") || strings.Contains(req.URL.Path, "/events") || req.URL.Query().Has("watch") {
		return false
	}
	code := choose(req.Method)
	if code == 0 {
		return false
	}
	rw.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		rw.Header().Set("Retry-After", "1")
	}
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reasons[code], Message: "injected", //nolint:gosec // an HTTP status
	})
	return true
}

var reasons = map[int]metav1.StatusReason{
	http.StatusConflict: metav1.StatusReasonConflict, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
}
