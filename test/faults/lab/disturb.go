// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BadAnswer chooses what is answered to a request of a controller that the API server does
// not get: a status code, or 0 for none.
type BadAnswer func(method string) int

// disturbance is a defect of the API server for the controllers of a world. Users
// notice nothing.
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

// Isolate ends the connections of a process to the API server, and refuses others.
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

// CutAPI ends all connections of the controllers to the API server, and refuses others until
// the caller calls back.
func (w *World) CutAPI() (back func()) {
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

// AnswerBadly lets requests be answered badly, but for those about Leases, events and
// watches, until the caller calls back.
func (w *World) AnswerBadly(choose BadAnswer) (back func()) {
	w.disturbed.setAnswer(choose)
	return func() { w.disturbed.setAnswer(nil) }
}

func (d *disturbance) setAnswer(choose BadAnswer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = choose
}

// begin returns a request that ends when the API server is cut off. It returns nil while
// that is so.
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

// answerBadly answers a request, or returns false.
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
