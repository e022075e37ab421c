// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
)

// OldLists are faults of a controller that restarts while the API server's watch cache lags
// behind: lists are old if the request allows this, and watches begin late. Other requests
// are not disturbed.
var OldLists = Faults{
	constructors: map[string]func() fault{
		"list of the begin": func() fault { return &oldLists{} },
	},
	recoveries: []lab.Recovery{lab.ByRestart},
	isWanted:   func(event string) bool { return strings.Contains(event, " virtualmachines ") },
}

// oldLists serves old lists to all processes but the first, which is killed at the
// event.
type oldLists struct {
	mu       sync.Mutex
	first    string // the version at the begin of the workload
	newest   string
	old      string // the version of lists, once the fault has occurred
	caughtUp time.Time
}

func (f *oldLists) occur(s *stream, e event) error {
	f.mu.Lock()
	f.old = cmp.Or(f.first, e.metadata().ResourceVersion)
	f.mu.Unlock()
	s.injector.killLeader()
	_ = s.deliver(e)
	f.awaitCaughtUp()
	return errCut
}

// awaitCaughtUp waits until lists and watches are up to date.
func (f *oldLists) awaitCaughtUp() {
	ctx, cancel := context.WithTimeout(context.Background(), faultTime)
	defer cancel()
	_ = assert.Poll(ctx, "lists and watches are up to date", func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		return assert.ErrorUnless(!f.caughtUp.IsZero() && !time.Now().Before(f.caughtUp.Add(calmTime)), "the lists are old")
	})
}

// translate records the versions that the first process sees.
func (f *oldLists) translate(e event) event {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = cmp.Or(e.metadata().ResourceVersion, f.newest)
	return e
}

func (f *oldLists) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = f.newest
}

// roundTrip implements fault.
func (f *oldLists) roundTrip(process int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	query := req.URL.Query()
	if process == firstProcess || !strings.HasSuffix(req.URL.Path, "/virtualmachines") {
		return next.RoundTrip(req)
	}
	switch {
	case query.Has("sendInitialEvents"):
		return refuseInitialEvents(req)
	case query.Has("watch"):
		f.waitUntilCaughtUp(req)
	case query.Get("resourceVersion") == "0":
		query.Set("resourceVersion", f.oldVersion())
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
		req.URL.RawQuery = query.Encode()
	}
	return next.RoundTrip(req)
}

// oldVersion returns the version of the old lists. Its first call makes watches lag from then on.
func (f *oldLists) oldVersion() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.caughtUp.IsZero() {
		f.caughtUp = time.Now().Add(lateness)
	}
	return f.old
}

func (f *oldLists) waitUntilCaughtUp(req *http.Request) {
	f.mu.Lock()
	at := f.caughtUp
	f.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
	case <-req.Context().Done():
	}
}

// refuseInitialEvents answers like an API server that does not support lists by watches. Then
// client-go lists with resourceVersion 0, which allows any version.
func refuseInitialEvents(*http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusUnprocessableEntity)
	err := json.NewEncoder(answer).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "sendInitialEvents: Forbidden",
	})
	return answer.Result(), err
}
