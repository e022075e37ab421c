// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/internal/crashpoint"
)

// addDecisionsFlag adds --decisions, which appends all decisions to a file, for test/faults.
func addDecisionsFlag(fs *pflag.FlagSet, o *Options) {
	fs.Func("decisions", "file to append every decision to", func(path string) error {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // The tests chose it.
		o.WriteDecision = func(line any) { writeDecision(file, line) }
		return err
	})
}

// writeDecision writes a separate line, also after an incomplete line of a killed process.
func writeDecision(file *os.File, line any) {
	text, err := json.Marshal(line)
	if err == nil {
		_, err = file.Write(slices.Concat([]byte("\n"), text, []byte("\n")))
	}
	if err != nil {
		panic(err)
	}
}

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
	fault := p.ChooseFault(slices.Collect(maps.Keys(badAnswers))...)
	bad := badAnswers[fault]
	if fault != "" && !bad.isAfter {
		return bad.answer(req)
	}
	res, err := t.next.RoundTrip(req)
	p.End()
	if fault == "" || err != nil {
		return res, err
	}
	_ = res.Body.Close()
	return bad.answer(req)
}

// badAnswer is an answer that the API server, or a proxy in front of it, may give.
type badAnswer struct {
	// isAfter says that the request was carried out before.
	isAfter bool
	// code is 0 for a connection that ends without an answer.
	code   int
	reason metav1.StatusReason
}

// badAnswers are those that test/faults chooses from, by the name of a fault.
var badAnswers = map[string]badAnswer{
	"409":           {code: http.StatusConflict, reason: metav1.StatusReasonConflict},
	"410":           {code: http.StatusGone, reason: metav1.StatusReasonExpired},
	"429":           {code: http.StatusTooManyRequests, reason: metav1.StatusReasonTooManyRequests},
	"500":           {code: http.StatusInternalServerError, reason: metav1.StatusReasonInternalError},
	"504 after":     {code: http.StatusGatewayTimeout, reason: metav1.StatusReasonTimeout, isAfter: true},
	"cut off":       {},
	"cut off after": {isAfter: true},
}

func (b badAnswer) answer(req *http.Request) (*http.Response, error) {
	if b.code == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	content, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(b.code), Reason: b.reason, Message: "injected",
	})
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if b.code == http.StatusTooManyRequests {
		header.Set("Retry-After", "1")
	}
	return &http.Response{
		Status: http.StatusText(b.code), StatusCode: b.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(content)), ContentLength: int64(len(content)), Request: req,
	}, nil
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
