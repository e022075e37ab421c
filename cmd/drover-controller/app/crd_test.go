// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
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
				epoch, err := startEpoch(t.Context(), &lists{answers: tc.answers})
				if tc.says == "" && (err != nil || epoch != 7) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
					t.Errorf("got %d, %v, want %q", epoch, err, tc.says)
				}
			})
		})
	}
}
