// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"bytes"
	"io"
	"net/http"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/internal/crashpoint"
)

// addCrashPoints makes every request to the API server a crash point, for test/faults.
func addCrashPoints(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return crashingTransport{next} })
}

type crashingTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper. The end of a request is the arrival of the
// answer, which nothing in this process has read yet.
func (t crashingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	operation, object := describeRequest(req)
	p := crashpoint.Begin(operation, object)
	res, err := t.next.RoundTrip(req)
	p.End()
	return res, err
}

// describeRequest returns, for example, "PUT virtualmachines.status" and "vm-1".
func describeRequest(req *http.Request) (operation, object string) {
	verb := req.Method
	if req.URL.Query().Has("watch") {
		verb = "WATCH"
	}
	_, path, found := strings.Cut(req.URL.Path, "/api/v1/")
	if !found {
		if _, path, found = strings.Cut(req.URL.Path, "/apis/"); !found {
			return verb, "other"
		}
		parts := strings.SplitN(path, "/", 3)
		path = parts[len(parts)-1]
		if len(parts) < 3 {
			return verb, "discovery"
		}
	}
	parts := strings.Split(path, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	switch resource := parts[0]; len(parts) {
	case 1:
		return verb + " " + resource, namedInBody(req)
	case 2:
		return verb + " " + resource, parts[1]
	default:
		return verb + " " + resource + "." + parts[2], parts[1]
	}
}

// namedInBody returns the name of the object that a request creates, or of the object
// that the event which it creates is about.
func namedInBody(req *http.Request) string {
	if req.Method != http.MethodPost || req.Body == nil {
		return "all"
	}
	content, _ := io.ReadAll(req.Body)
	_ = req.Body.Close()
	req.Body = io.NopCloser(bytes.NewReader(content))
	o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(content, nil, nil)
	if err != nil {
		return "new"
	}
	if event, ok := o.(*eventsv1.Event); ok {
		return event.Regarding.Name + "-" + event.Reason
	}
	named, err := meta.Accessor(o)
	if err != nil {
		return "new"
	}
	return named.GetName()
}
