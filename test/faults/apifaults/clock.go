// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"cloudnative.tw/drover/test/faults/lab"
)

// clockStep is how far the API server's clock steps.
const clockStep = time.Hour

// ClockSteps are steps of the API server's clock: from one event of a VirtualMachine on, new creation
// and deletion timestamps come from a clock that is ahead or behind. Older timestamps stay, so an
// object may be deleted before it was created.
var ClockSteps = Faults{
	constructors: map[string]func() fault{
		"ahead":  func() fault { return &steppedClock{step: clockStep, times: map[string]timeChange{}} },
		"behind": func() fault { return &steppedClock{step: -clockStep, times: map[string]timeChange{}} },
	},
	recoveries: []lab.Recovery{lab.ByRestart, lab.ByStandby},
	isWanted:   func(event string) bool { return strings.Contains(event, " virtualmachines ") },
}

// steppedClock changes the times that the API server sets in VirtualMachines.
type steppedClock struct {
	noFault
	step time.Duration

	mu    sync.Mutex
	since time.Time
	times map[string]timeChange // by UID and field
}

// timeChange is a time in the API server, and the time that processes see in its place.
type timeChange struct{ real, seen string }

func (f *steppedClock) occur(s *stream, e event) error {
	f.mu.Lock()
	f.since = time.Now()
	if o := e.metadata(); e.Type == string(watch.Added) { // the added object gets the new time too
		f.since = o.CreationTimestamp.Time
		delete(f.times, string(o.UID)+" creationTimestamp") // determine it again: the answer to the creation has recorded the old time
	}
	f.mu.Unlock()
	return s.deliver(e)
}

func (f *steppedClock) translate(e event) event {
	if changed, err := f.changeTimes(e.Object, f.seenTime); err == nil {
		e.Object = changed
	}
	return e
}

// roundTrip implements fault.
func (f *steppedClock) roundTrip(_ int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	if !strings.Contains(req.URL.Path, "/virtualmachines") {
		return next.RoundTrip(req)
	}
	if req.Body != nil {
		content, err := f.changeBody(req.Body, f.realTime)
		if err != nil {
			return nil, err
		}
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	}
	req.Header.Del("Accept-Encoding")
	res, err := next.RoundTrip(req)
	if err != nil || req.URL.Query().Has("watch") {
		return res, err
	}
	content, err := f.changeBody(res.Body, f.seenTime)
	if err != nil {
		return nil, err
	}
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	res.Header.Set("Content-Length", strconv.Itoa(len(content)))
	return res, nil
}

func (f *steppedClock) changeBody(body io.ReadCloser, change changer) ([]byte, error) {
	content, err := io.ReadAll(body)
	_ = body.Close()
	if err != nil || len(content) == 0 {
		return content, err
	}
	return f.changeTimes(content, change)
}

// changer returns the text that replaces a time. The key is the object's UID and the name of the field.
type changer func(key, text string) string

// changeTimes changes the times in an object, or in all objects of a list.
func (f *steppedClock) changeTimes(content []byte, change changer) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var o map[string]any
	if err := decoder.Decode(&o); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changeObject(o, change)
	items, _ := o["items"].([]any)
	for _, item := range items {
		if o, ok := item.(map[string]any); ok {
			changeObject(o, change)
		}
	}
	return json.Marshal(o)
}

func changeObject(o map[string]any, change changer) {
	metadata, _ := o["metadata"].(map[string]any)
	uid, _ := metadata["uid"].(string)
	for _, field := range []string{"creationTimestamp", "deletionTimestamp"} {
		if text, ok := metadata[field].(string); ok && uid != "" {
			metadata[field] = change(uid+" "+field, text)
		}
	}
}

// seenTime returns the time that processes see. It is determined once for each field, because an
// object's time does not change with the clock. The caller must hold the lock.
func (f *steppedClock) seenTime(key, text string) string {
	if known, ok := f.times[key]; ok {
		return known.seen
	}
	seen := text
	at, err := time.Parse(time.RFC3339, text)
	if err == nil && !f.since.IsZero() && !at.Before(f.since.Truncate(time.Second)) {
		seen = at.Add(f.step).UTC().Format(time.RFC3339)
	}
	f.times[key] = timeChange{text, seen}
	return seen
}

// realTime returns the time in the API server.
func (f *steppedClock) realTime(key, text string) string {
	if known, ok := f.times[key]; ok && known.seen == text {
		return known.real
	}
	return text
}
