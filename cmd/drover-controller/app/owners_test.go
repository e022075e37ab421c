// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// TestApprovals checks that only the ConfigMap of kube-system approves anything, and that a
// controller of an older role goes on without.
func TestApprovals(t *testing.T) {
	t.Parallel()
	approvals := func(namespace string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: streams.OrphanApprovalsName}, Data: map[string]string{"u1": "s1", "u2": "s2"}}
	}
	for name, tc := range map[string]struct {
		object  *corev1.ConfigMap
		refused error
		want    map[driver.Target]bool
	}{
		"none":              {nil, nil, nil},
		"approved":          {approvals("kube-system"), nil, map[driver.Target]bool{{UID: "u1", ID: "s1"}: true, {UID: "u2", ID: "s2"}: true}},
		"another namespace": {approvals("default"), nil, nil},
		"no right":          {approvals("kube-system"), apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, streams.OrphanApprovalsName, nil), nil},
		"no answer":         {approvals("kube-system"), errors.New("timeout"), nil},
	} {
		b := clientfake.NewClientBuilder()
		if tc.object != nil {
			b = b.WithObjects(tc.object)
		}
		reader := b.WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
				if tc.refused != nil {
					return tc.refused
				}
				return c.Get(ctx, key, object, opts...)
			},
		}).Build()
		got, err := approvedOrphans(reader)(t.Context())
		if !maps.Equal(got, tc.want) || (err != nil) != (name == "no answer") {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tc.want)
		}
	}
}
