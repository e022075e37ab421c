// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestAnswers checks what requests that cannot become streams are answered, in the order of
// the steps: an error of a later step must not show before an earlier one has passed.
func TestAnswers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) {
		d, _ := driver.As[*stub](h.Drivers["stub"])
		d.logs = func(_ context.Context, o driver.LogOptions) (io.ReadCloser, error) {
			switch {
			case o.Previous:
				return nil, driver.Errorf(driver.ErrRetry, "no earlier run is known")
			case o.TailLines != nil:
				return nil, driver.Errorf(driver.ErrBusy, "32 are open")
			case o.Follow:
				return nil, driver.Errorf(driver.ErrUnsupported, "there is no log")
			}
			return nil, driver.Errorf(driver.ErrUnavailable, "the engine is away")
		}
		d.interfaces = func(context.Context) ([]report.Interface, error) { return nil, driver.ErrNotFound }
	})
	f.create(t, framework.NewVM("unbound").Namespace("demo"))
	f.create(t, framework.NewVM("elsewhere").Namespace("demo").Bound("other/engine-1"))
	f.create(t, framework.NewVM("replaced").Namespace("demo").Bound("stub/engine-2"))
	f.create(t, framework.NewVM("bare").Namespace("demo").Bound("bare/engine-1"))
	path := streams.Path("demo", "vm", streams.Log)
	for name, test := range map[string]struct {
		who, path string
		code      int
		reason    metav1.StatusReason
		says      string
	}{
		"no user":             {"", path, 401, metav1.StatusReasonUnauthorized, "Unauthorized"},
		"no right":            {"mallory", path, 403, metav1.StatusReasonForbidden, `"vm" is forbidden: User "mallory" cannot get resource "virtualmachines/log"`},
		"no right, no VM":     {"mallory", streams.Path("demo", "none", streams.Log), 403, metav1.StatusReasonForbidden, `"none" is forbidden`},
		"no VM":               {"alice", streams.Path("demo", "none", streams.Log), 404, metav1.StatusReasonNotFound, `"none" not found`},
		"another namespace":   {"alice", streams.Path("other", "vm", streams.Log), 404, metav1.StatusReasonNotFound, `"vm" not found`},
		"no server":           {"alice", streams.Path("demo", "unbound", streams.Log), 409, metav1.StatusReasonConflict, "does not exist yet"},
		"driver elsewhere":    {"alice", streams.Path("demo", "elsewhere", streams.Log), 503, metav1.StatusReasonServiceUnavailable, `driver "other"`},
		"another engine":      {"alice", streams.Path("demo", "replaced", streams.Log), 503, metav1.StatusReasonServiceUnavailable, "another engine"},
		"not offered":         {"alice", streams.Path("demo", "bare", streams.Log), 501, streams.ReasonUnsupported, "driver bare does not offer the stream log"},
		"nothing printed":     {"alice", path + "?previous=true", 409, metav1.StatusReasonConflict, "no earlier run"},
		"busy":                {"alice", path + "?tailLines=1", 429, metav1.StatusReasonTooManyRequests, "32 are open"},
		"refused by driver":   {"alice", path + "?follow=1", 501, streams.ReasonUnsupported, "there is no log"},
		"engine away":         {"alice", path, 503, metav1.StatusReasonServiceUnavailable, "the engine is away"},
		"server gone":         {"alice", streams.Path("demo", "vm", streams.Interfaces), 409, metav1.StatusReasonConflict, "there is no server"},
		"bad flag":            {"alice", path + "?follow=maybe", 400, metav1.StatusReasonBadRequest, `follow is "maybe": it must be true or false`},
		"bad number":          {"alice", path + "?tailLines=-1", 400, metav1.StatusReasonBadRequest, `tailLines is "-1"`},
		"no WebSocket":        {"alice", streams.Path("demo", "vm", streams.Console), 400, metav1.StatusReasonBadRequest, "console needs a WebSocket"},
		"no port":             {"alice", streams.Path("demo", "vm", streams.PortForward), 400, metav1.StatusReasonBadRequest, "port is missing"},
		"bad port":            {"alice", streams.Path("demo", "vm", streams.PortForward) + "?port=65536", 400, metav1.StatusReasonBadRequest, `port is "65536": it must be a number from 1 to 65535`},
		"no command":          {"alice", streams.Path("demo", "vm", streams.Exec) + "?stdout=true", 400, metav1.StatusReasonBadRequest, "command is missing"},
		"no variable":         {"alice", streams.Path("demo", "vm", streams.Exec) + "?command=ls&stdout=true&env=A=b&env=hunter2", 400, metav1.StatusReasonBadRequest, "parameter env has a variable without the form NAME=VALUE"},
		"no folder":           {"alice", streams.Path("demo", "vm", streams.Exec) + "?command=ls&stdout=true&workdir=srv", 400, metav1.StatusReasonBadRequest, `parameter workdir is "srv": it must be an absolute path`},
		"no channel":          {"alice", streams.Path("demo", "vm", streams.Exec) + "?command=ls", 400, metav1.StatusReasonBadRequest, "none of the parameters stdin, stdout and stderr"},
		"no such stream":      {"alice", streams.Path("demo", "vm", "delete"), 404, metav1.StatusReasonNotFound, `the stream is "delete": it must be console, exec, portforward, log, interfaces or decisions`},
		"no such path":        {"alice", streams.PathPrefix + "/namespaces/demo", 404, metav1.StatusReasonNotFound, "no stream has this path"},
		"other prefix":        {"alice", strings.Replace(path, "v1alpha1", "v1", 1), 404, metav1.StatusReasonNotFound, "no stream has this path"},
		"trailing slash":      {"alice", path + "/", 404, metav1.StatusReasonNotFound, "no stream has this path"},
		"traversal":           {"alice", streams.PathPrefix + "/namespaces/demo/virtualmachines/..%2f..%2fother/log", 404, metav1.StatusReasonNotFound, "no stream has this path"},
		"dots":                {"alice", streams.PathPrefix + "/namespaces/demo/virtualmachines/%2e%2e/log", 400, metav1.StatusReasonBadRequest, `the VirtualMachine's name is ".."`},
		"a namespace of dots": {"alice", streams.PathPrefix + "/namespaces/%2e%2e/virtualmachines/vm/log", 400, metav1.StatusReasonBadRequest, `the namespace is ".."`},
		"capitals":            {"alice", streams.Path("demo", "VM", streams.Log), 400, metav1.StatusReasonBadRequest, `the VirtualMachine's name is "VM"`},
		"a name with NUL":     {"alice", streams.PathPrefix + "/namespaces/demo/virtualmachines/vm%00/log", 400, metav1.StatusReasonBadRequest, "name is"},
	} {
		t.Run(name, func(t *testing.T) { // one after another: a user may have few streams at once
			code, header, status := f.get(t, test.who, test.path)
			assert.True(t, code == test.code && int(status.Code) == test.code && status.Reason == test.reason && strings.Contains(status.Message, test.says),
				"the answer is %d, %+v", code, status)
			if kind := header.Get("Content-Type"); kind != "application/json" || status.Kind != "Status" || status.APIVersion != "v1" {
				t.Errorf("the answer is %s of kind %s %s", kind, status.APIVersion, status.Kind)
			}
		})
	}
}

func (f *fixture) create(t *testing.T, b *framework.VMBuilder) {
	t.Helper()
	assert.NoError(t, f.objects.Create(t.Context(), b.Obj()))
}

// get returns the answer to a plain request.
func (f *fixture) get(t *testing.T, who, path string) (code int, header http.Header, status metav1.Status) {
	t.Helper()
	return f.send(t, http.MethodGet, who, path)
}

func (f *fixture) send(t *testing.T, method, who, path string) (code int, header http.Header, status metav1.Status) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.server.URL+path, http.NoBody)
	assert.NoError(t, err)
	if who != "" {
		r.Header.Set("Authorization", "Bearer "+who)
	}
	response, err := f.server.Client().Do(r)
	assert.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	assert.NoError(t, json.NewDecoder(response.Body).Decode(&status))
	return response.StatusCode, response.Header, status
}

// TestVerbs checks which right each stream needs. It does not depend on the method, which
// is always GET.
func TestVerbs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for stream, verb := range map[streams.Stream]string{
		streams.Console: "create", streams.Exec: "create", streams.PortForward: "create",
		streams.Log: "get", streams.Interfaces: "get",
	} {
		code, _, _ := f.get(t, "mallory", streams.Path("demo", "vm", stream))
		assert.True(t, code == http.StatusForbidden, "%s answers %d", stream, code)
		a := f.rules.last
		if a.GetVerb() != verb || a.GetSubresource() != string(stream) || a.GetResource() != "virtualmachines" || a.GetAPIGroup() != "cloudnative.tw" ||
			a.GetNamespace() != "demo" || a.GetName() != "vm" || !a.IsResourceRequest() {
			t.Errorf("%s is authorized as %+v", stream, a)
		}
		code, header, _ := f.send(t, http.MethodPost, "alice", streams.Path("demo", "vm", stream))
		assert.True(t, code == http.StatusMethodNotAllowed && header.Get("Allow") == "GET", "POST of %s answers %d", stream, code)
	}
}

// TestUnansweredAuthorization checks that a stream begins only on a clear answer.
func TestUnansweredAuthorization(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.rules.set(func() { f.rules.err = errors.New("secret detail") })
	code, _, status := f.get(t, "alice", streams.Path("demo", "vm", streams.Log))
	assert.True(t, code == http.StatusServiceUnavailable && !strings.Contains(status.Message, "secret"), "the answer is %+v", status)
}

// TestBeforeAndAfter checks the answers of a Handler that does not run yet, and no longer.
func TestBeforeAndAfter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.admission.open(nil) //nolint:staticcheck // as before Start
	code, header, _ := f.get(t, "alice", streams.Path("demo", "vm", streams.Log))
	assert.True(t, code == http.StatusServiceUnavailable && header.Get("Retry-After") != "",
		"before it starts the answer is %d, Retry-After %q", code, header.Get("Retry-After"))
	ended, end := context.WithCancel(t.Context())
	end()
	f.admission.open(ended)
	code, header, _ = f.get(t, "alice", streams.Path("demo", "vm", streams.Log))
	assert.True(t, code == http.StatusServiceUnavailable && header.Get("Retry-After") == "",
		"after it has stopped the answer is %d, Retry-After %q", code, header.Get("Retry-After"))
}

// TestStatistics checks that the interfaces come with the figures of the network on request, by the same right.
func TestStatistics(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.statistics = func(context.Context) (report.NetworkStatistics, error) {
		last := report.Refusal{Protocol: "tcp", Target: "10.0.0.5:22", Reason: "Denied", Count: 14, Last: time.Unix(1, 0).UTC()}
		return report.NetworkStatistics{PacketsIn: 1, BytesIn: 2, PacketsOut: 3, BytesOut: 4, Dropped: 5, Connections: 6, Flows: 7, Refused: 8, LastRefused: []report.Refusal{last}}, nil
	}
	response := f.request(t, f.url(streams.Interfaces, "statistics=true"))
	defer func() { _ = response.Body.Close() }()
	const want = `{"packetsIn":1,"bytesIn":2,"packetsOut":3,"bytesOut":4,"dropped":5,"connections":6,"flows":7,"refused":8,` +
		`"lastRefused":[{"protocol":"tcp","target":"10.0.0.5:22","reason":"Denied","count":14,"last":"1970-01-01T00:00:01Z"}]}`
	if text, err := io.ReadAll(response.Body); string(text) != want {
		t.Errorf("the figures are %s, %v", text, err)
	}
	code, _, text := f.get(t, "alice", streams.Path("demo", "vm", streams.Interfaces)+"?statistics=2")
	assert.True(t, code == http.StatusBadRequest && strings.Contains(text.Message, `parameter statistics is "2": it must be true or false`),
		"a wrong parameter is answered with %d: %+v", code, text)
}

// TestInterfaces checks that an empty list is a list.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.interfaces = func(context.Context) ([]report.Interface, error) { return nil, nil }
	response := f.request(t, f.url(streams.Interfaces, ""))
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	assert.True(t, string(text) == "[]", "the list is %s, %v", text, err)
}
