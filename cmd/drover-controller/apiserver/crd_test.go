// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// lists is an API that answers one list after another, the last again and again.
type lists struct {
	client.Reader
	answers []error
}

func (l *lists) List(_ context.Context, all client.ObjectList, _ ...client.ListOption) error {
	err := l.answers[0]
	if len(l.answers) > 1 {
		l.answers = l.answers[1:]
	}
	all.SetResourceVersion("7")
	return err
}

// TestStartEpoch checks that a CRD that was just installed is waited for, and nothing else.
func TestStartEpoch(t *testing.T) {
	t.Parallel()
	unknown := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: api.GroupName, Kind: "VirtualMachine"}}
	partly := &apiutil.ErrResourceDiscoveryFailed{api.SchemeGroupVersion: apierrors.NewNotFound(schema.GroupResource{}, "")}
	others := &apiutil.ErrResourceDiscoveryFailed{{Group: "metrics.k8s.io", Version: "v1"}: errors.New("no endpoints")}
	for name, tc := range map[string]struct {
		answers []error
		says    string
	}{
		"served":         {[]error{nil}, ""},
		"served later":   {[]error{unknown, partly, nil}, ""},
		"not installed":  {[]error{partly, unknown}, "CRD is not installed"},
		"other failures": {[]error{others, nil}, "list VirtualMachines"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				epoch, err := StartEpoch(t.Context(), &lists{answers: tc.answers})
				assert.True(t, (tc.says != "" || (err == nil && epoch == 7)) && (tc.says == "" || (err != nil && strings.Contains(err.Error(), tc.says))),
					"got %d, %v, want %q", epoch, err, tc.says)
			})
		})
	}
}

// respond answers requests inside the test's process, so that a fake clock applies.
type respond func(*http.Request) *http.Response

// RoundTrip implements http.RoundTripper.
func (r respond) RoundTrip(req *http.Request) (*http.Response, error) { return r(req), nil }

// TestCheckCRD checks that a missing field is named, and that the program stops
// only for a field that is certainly missing.
func TestCheckCRD(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code   int
		schema string // of the status
		says   string
	}{
		"an older one":   {http.StatusOK, `{"properties": {"phase": {}}}`, "has no status."},
		"not to be read": {http.StatusForbidden, "{}", ""},
		"unreadable":     {http.StatusOK, `[`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := CheckCRD(t.Context(), &rest.Config{Host: "http://api", Transport: respond(func(req *http.Request) *http.Response {
					assert.True(t, req.URL.Path == "/openapi/v3/apis/cloudnative.tw/v1alpha1", "requested %s", req.URL)
					body := fmt.Sprintf(`{"components": {"schemas": {"tw.cloudnative.v1alpha1.VirtualMachine": {"properties": {"status": %s}}}}}`, tc.schema)
					return &http.Response{StatusCode: tc.code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
				})})
				assert.True(t, (tc.says != "") == errors.Is(err, errOldCRD) && (err == nil || strings.Contains(err.Error(), tc.says)),
					"got %v, want %q", err, tc.says)
			})
		})
	}
}
