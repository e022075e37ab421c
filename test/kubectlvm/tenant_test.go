// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestNamespaceOfATenant lets a tenant create namespace drover-system and administer it, in a cluster
// where Drover is in another namespace. Other users must not connect to a server that the tenant
// publishes there.
func TestNamespaceOfATenant(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("vm")
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	lie := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: streams.ConfigMapName},
		Data:       map[string]string{streams.AddressKey: server.URL, streams.CAKey: string(ca)},
	}

	tenant := newTenant(t, "drover-system")
	onceAllowed(t, func() error {
		_, err := tenant.CoreV1().ConfigMaps("drover-system").Create(t.Context(), lie, metav1.CreateOptions{})
		return err
	})
	_, err := tenant.CoreV1().ConfigMaps(streams.ConfigMapNamespace).Create(t.Context(), lie, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "a tenant publishes an address in %s: %v", streams.ConfigMapNamespace, err)
	for _, verb := range [][]string{{"console", "vm"}, {"logs", "vm"}, {"exec", "vm", "--", "true"}, {"ip", "vm"}} {
		u.mustFail(1, []string{`configmaps "drover-streams" not found in kube-system`}, verb...)
	}
	wantTexts(t, u.run("doctor").out, `"drover-streams"`)
	n := connections.Load()
	assert.True(t, n == 0, "the tenant's server had %d connections", n)
}

// newTenant returns a user who has created a namespace and is its administrator, as is usual in
// clusters.
func newTenant(t *testing.T, namespace string) kubernetes.Interface {
	t.Helper()
	const name = "tenant"
	person, subject := environment.NewPerson(t, name)
	environment.CreateRole(t, name, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"create"}})
	environment.Bind(t, "", name, subject)
	tenant := kubernetes.NewForConfigOrDie(person)
	onceAllowed(t, func() error {
		_, err := tenant.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		return err
	})
	environment.Bind(t, namespace, "admin", subject)
	return tenant
}

// onceAllowed repeats a request until it is no longer forbidden: the API server applies new roles
// with a delay.
func onceAllowed(t *testing.T, request func() error) {
	t.Helper()
	assert.Eventually(t, "the new role is applied", func(t testing.TB) error {
		err := request()
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err
	})
}
