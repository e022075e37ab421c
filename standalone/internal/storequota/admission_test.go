// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storequota

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"

	"cloudnative.tw/drover/test/assert"
)

// interfaces are the interfaces that kube-apiserver gives a plugin for built-in kinds.
type interfaces struct{ admission.ObjectInterfaces }

func (interfaces) GetObjectConvertor() runtime.ObjectConvertor {
	return runtime.UnsafeObjectConvertor(legacyscheme.Scheme)
}

// request is a write of an object.
type request struct {
	resource    string
	subresource string
	object, old runtime.Object
	operation   admission.Operation
	user        string
	groups      []string
	isDryRun    bool
	kind        schema.GroupVersionKind
}

func validate(t *testing.T, p *plugin, r request) error {
	t.Helper()
	return validateWith(t.Context(), t, p, r)
}

func validateWith(ctx context.Context, t *testing.T, p *plugin, r request) error {
	t.Helper()
	// kube-apiserver passes its internal types.
	internal := func(object runtime.Object) runtime.Object {
		if _, ok := object.(*unstructured.Unstructured); ok || object == nil {
			return object
		}
		converted, err := legacyscheme.Scheme.ConvertToVersion(object, schema.GroupVersion{Group: r.kind.Group, Version: runtime.APIVersionInternal})
		assert.NoError(t, err)
		return converted
	}
	resource := schema.GroupVersionResource{Group: r.kind.Group, Version: r.kind.Version, Resource: r.resource}
	return p.Validate(ctx, admission.NewAttributesRecord(internal(r.object), internal(r.old), r.kind, "blue", "x", resource, r.subresource,
		r.operation, nil, r.isDryRun, &user.DefaultInfo{Name: r.user, Groups: r.groups}), interfaces{})
}

var (
	configMaps = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	leases     = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
	machines   = schema.GroupVersionKind{Group: "cloudnative.tw", Version: "v1alpha1", Kind: "VirtualMachine"}
)

func configMap(size int, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "blue", Finalizers: finalizers},
		Data:       map[string]string{"x": strings.Repeat("x", size)},
	}
}

func vm(note string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x"}, "status": map[string]any{"note": note}}}
}

func lease(holder string, renewed time.Time) *coordinationv1.Lease {
	at, transitions := metav1.NewMicroTime(renewed), int32(renewed.Unix()) //nolint:gosec // a time of the tests
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "blue"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at, LeaseTransitions: &transitions},
	}
}

// TestPluginOfFullNamespace checks what the plugin refuses to those who have filled a
// namespace.
func TestPluginOfFullNamespace(t *testing.T) {
	t.Parallel()
	newLease, oldLease := lease("me", time.Unix(2_000_000_000, 999_999_000)), lease("me", time.Unix(1, 0))
	withVersion := configMap(mebibyte)
	withVersion.ResourceVersion, withVersion.Generation = "123456", 1<<40
	long := strings.Repeat("x", 2048)
	for name, c := range map[string]struct {
		request

		isRefused bool
	}{
		"a new object":                     {request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1)}, true},
		"a new custom object":              {request{kind: machines, resource: "virtualmachines", operation: admission.Create, object: vm("")}, true},
		"a new Lease":                      {request{kind: leases, resource: "leases", operation: admission.Create, object: newLease}, true},
		"an object that grows":             {request{kind: configMaps, resource: "configmaps", operation: admission.Update, object: configMap(4096), old: configMap(1)}, true},
		"a status that grows":              {request{kind: machines, resource: "virtualmachines", subresource: "status", operation: admission.Update, object: vm(long), old: vm("")}, true},
		"a Lease that grows":               {request{kind: leases, resource: "leases", operation: admission.Update, object: lease(long, time.Unix(1, 0)), old: oldLease}, true},
		"growth beside a finalizer's end":  {request{kind: configMaps, resource: "configmaps", operation: admission.Update, object: configMap(4096), old: configMap(1, "a/b")}, true},
		"a new object by an admin":         {request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1), groups: []string{user.SystemPrivilegedGroup}}, true},
		"a Lease that is renewed":          {request{kind: leases, resource: "leases", operation: admission.Update, object: newLease, old: oldLease}, false},
		"an object that shrinks":           {request{kind: configMaps, resource: "configmaps", operation: admission.Update, object: configMap(1), old: configMap(4096)}, false},
		"an object of another version":     {request{kind: configMaps, resource: "configmaps", operation: admission.Update, object: withVersion, old: configMap(mebibyte)}, false},
		"a finalizer's end":                {request{kind: configMaps, resource: "configmaps", operation: admission.Update, object: configMap(1), old: configMap(1, "a/b")}, false},
		"a deletion":                       {request{kind: configMaps, resource: "configmaps", operation: admission.Delete, old: configMap(1)}, false},
		"a dry run":                        {request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1), isDryRun: true}, false},
		"a new object by Drover":           {request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1), user: "drover-controller"}, false},
		"a new object by a controller":     {request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1), groups: []string{"system:serviceaccounts:kube-system"}}, false},
		"a token, which is not stored":     {request{kind: configMaps, resource: "serviceaccounts", subresource: "token", operation: admission.Create, object: configMap(1)}, false},
		"a status of Drover's that grows":  {request{kind: machines, resource: "virtualmachines", subresource: "status", operation: admission.Update, object: vm(long), old: vm(""), user: "drover-controller"}, false},
		"a status that does not grow much": {request{kind: machines, resource: "virtualmachines", subresource: "status", operation: admission.Update, object: vm("a little"), old: vm("")}, false},
	} {
		a, _ := newAccounts()
		fill(a, "blue", mebibyte)
		admitAll(a, Write{Namespace: "blue", Size: 100, Growth: 100}) // the rest
		if strings.Contains(name, "Lease that is") || strings.Contains(name, "another version") || strings.Contains(name, "finalizer's end") {
			a.changeAccount("blue", func(x *account) { x.fresh += quota / 10 }) // nothing may grow at all
		}
		err := validate(t, &plugin{accounts: a, own: []string{"drover-controller"}}, c.request)
		assert.True(t, (err != nil) == c.isRefused && (err == nil || apierrors.IsForbidden(err)), "%s: %v", name, err)
	}
}

// TestSizes checks that sizes count every byte that is stored.
func TestSizes(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	p := &plugin{accounts: a}
	for _, r := range []request{
		{kind: configMaps, resource: "configmaps", object: configMap(mebibyte)},
		{kind: configMaps, resource: "configmaps", object: &corev1.ConfigMap{BinaryData: map[string][]byte{"x": make([]byte, mebibyte)}}},
		{kind: machines, resource: "virtualmachines", object: vm(strings.Repeat("x", mebibyte))},
		{kind: leases, resource: "leases", object: lease(strings.Repeat("x", mebibyte), time.Unix(1, 0))},
	} {
		before, _, _ := a.Largest(1)
		r.operation = admission.Create
		assert.NoError(t, validate(t, p, r))
		after, _, _ := a.Largest(1)
		assert.True(t, after-before >= mebibyte && after-before <= mebibyte+8*ObjectOverhead, "%s counts as %d bytes", r.kind.Kind, after-before)
	}
}

// TestPassingRefusal checks that clients try again after a refusal that passes.
func TestPassingRefusal(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	a.RecordDeletion("blue", 2*quota)
	err := validate(t, &plugin{accounts: a}, request{kind: configMaps, resource: "configmaps", operation: admission.Create, object: configMap(1)})
	seconds, ok := apierrors.SuggestsClientDelay(err)
	assert.True(t, ok && seconds != 0, "the refusal is %v", err)
}

// TestRepeatedDeletions checks that an object which waits for its finalizer counts as replaced
// by the first deletion only: whoever deletes it again would hold up everyone.
func TestRepeatedDeletions(t *testing.T) {
	t.Parallel()
	a, _ := newAccounts()
	waiting := configMap(mebibyte, "a/b")
	deletion := request{kind: configMaps, resource: "configmaps", operation: admission.Delete, old: waiting}
	for range 200 {
		assert.NoError(t, validate(t, &plugin{accounts: a}, deletion))
		waiting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	got := a.sum.churnBytes()
	assert.True(t, got >= mebibyte && got <= 2*mebibyte, "200 deletions of one object count as %d bytes", got)
}

// TestRefusedWritesAreTakenBack checks that requests which the API refuses after the plugin has
// admitted them, as those to create what exists, leave nothing in the accounts, and that an
// update which the API tries again counts once.
func TestRefusedWritesAreTakenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request

		code, tries int
		isStored    bool
	}{
		"an object that exists":      {request{operation: admission.Create, object: configMap(mebibyte)}, http.StatusConflict, 1, false},
		"a used ResourceQuota":       {request{operation: admission.Create, object: configMap(mebibyte)}, http.StatusForbidden, 1, false},
		"an update of an old one":    {request{operation: admission.Update, object: configMap(mebibyte), old: configMap(1)}, http.StatusConflict, 1, false},
		"a new object":               {request{operation: admission.Create, object: configMap(mebibyte)}, http.StatusCreated, 1, true},
		"an object that took long":   {request{operation: admission.Create, object: configMap(mebibyte)}, http.StatusGatewayTimeout, 1, true},
		"an update that met another": {request{operation: admission.Update, object: configMap(mebibyte), old: configMap(1)}, http.StatusOK, 5, true},
	} {
		a, _ := newAccounts()
		c.kind, c.resource = configMaps, "configmaps"
		handler := a.WithRefunds(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range c.tries {
				assert.NoError(t, validateWith(r.Context(), t, &plugin{accounts: a}, c.request))
			}
			w.WriteHeader(c.code)
		}))
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
		got, want := a.sum.bytes()+a.sum.churnBytes(), int64(0)
		if c.isStored {
			want = mebibyte
		}
		if c.isStored && c.operation == admission.Update {
			want = 2 * mebibyte
		}
		if own := a.accountOf("blue"); got < want || got > want+16*ObjectOverhead || own.bytes()+own.churnBytes() != got {
			t.Errorf("%s: the accounts have %d bytes, want %d", name, got, want)
		}
	}
}
