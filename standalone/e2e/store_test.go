// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// hoarders make objects of the kinds that a user with role edit may fill a namespace with,
// each as large as the kind allows.
var hoarders = map[string]func(metav1.ObjectMeta) client.Object{
	"ConfigMap": func(m metav1.ObjectMeta) client.Object {
		return &corev1.ConfigMap{ObjectMeta: m, BinaryData: map[string][]byte{"x": make([]byte, 1_000_000)}}
	},
	"Secret": func(m metav1.ObjectMeta) client.Object {
		return &corev1.Secret{ObjectMeta: m, Data: map[string][]byte{"x": make([]byte, 1_000_000)}}
	},
	"Event": func(m metav1.ObjectMeta) client.Object {
		return &corev1.Event{
			ObjectMeta: m, InvolvedObject: corev1.ObjectReference{Namespace: m.Namespace},
			Source: corev1.EventSource{Component: strings.Repeat("x", 1_000_000)},
		}
	},
	"Lease": func(m metav1.ObjectMeta) client.Object {
		m.Annotations = map[string]string{"x": strings.Repeat("x", 200_000)}
		return &coordinationv1.Lease{ObjectMeta: m}
	},
	"VirtualMachine": func(m metav1.ObjectMeta) client.Object {
		vm := framework.NewVM(m.Name).Namespace(m.Namespace).Obj()
		vm.Annotations = map[string]string{"x": strings.Repeat("x", 200_000)}
		return vm
	},
}

// TestFullNamespaceStopsNoOther has a user fill one namespace, while a VM of another one is
// created, stopped and deleted. What was filled can be deleted, and then written again.
func TestFullNamespaceStopsNoOther(t *testing.T) {
	t.Parallel()
	c := inspected{framework.StartCluster(t, framework.ClusterOptions{
		WithController: true, Args: []string{"--vm-driver", "fake", "--store-quota", "32Mi"},
	})}
	admin := objectsFor(t, c.Config)
	full, other := newNamespace(t, admin), newNamespace(t, admin)
	user := editorOf(t, c.Cluster, admin, full)
	fillNamespace(t, user, full)
	c.wantDoctor(t, map[string]string{"store": "warning"})

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		goOnWriting(ctx, user, full)
	}()
	live(t, editorOf(t, c.Cluster, admin, other), other)
	cancel()
	<-done

	for _, kind := range hoarders {
		assert.NoError(t, user.DeleteAllOf(t.Context(), kind(metav1.ObjectMeta{}), client.InNamespace(full)))
	}
	assert.Eventually(t, "the namespace can be written to again", func(t testing.TB) error {
		return client.IgnoreAlreadyExists(user.Create(t.Context(), hoarders["ConfigMap"](metav1.ObjectMeta{Namespace: full, Name: "again"})))
	})
	c.wantDoctor(t, map[string]string{"store": "ok"})
}

// editorOf returns a client of a ServiceAccount that may edit a namespace.
func editorOf(t *testing.T, cluster *framework.Cluster, admin client.Client, ns string) client.Client {
	t.Helper()
	account := waitForServiceAccount(t, admin, ns)
	create(t, admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: account.Name}},
	})
	token := &authenticationv1.TokenRequest{}
	assert.NoError(t, admin.SubResource("token").Create(t.Context(), account, token))
	config := rest.AnonymousClientConfig(cluster.Config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	user := objectsFor(t, config)
	assert.Eventually(t, "the role takes effect", func(t testing.TB) error {
		return errors.Join(user.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)), user.List(t.Context(), &api.VirtualMachineList{}, client.InNamespace(ns)))
	})
	return user
}

// fillNamespace creates objects of all kinds in turn until each kind is refused.
func fillNamespace(t *testing.T, user client.Client, ns string) {
	t.Helper()
	created, refused := 0, map[string]bool{}
	for len(refused) < len(hoarders) {
		for kind, object := range hoarders {
			err := user.Create(t.Context(), object(metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("x-%d", created)}))
			if err == nil {
				created++
				continue
			}
			assert.Require(t, apierrors.IsForbidden(err), "%s after %d objects: %v", kind, created, err)
			assert.ErrorSays(t, kind, err, "namespace "+ns+" has ")
			refused[kind] = true
		}
	}
	assert.True(t, created >= 20, "only %d objects were admitted", created)
}

// goOnWriting creates and updates objects, whatever comes of it.
func goOnWriting(ctx context.Context, user client.Client, ns string) {
	for i := 0; ctx.Err() == nil; i++ {
		for _, object := range hoarders {
			_ = user.Create(ctx, object(metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("more-%d", i)}))
		}
		_ = user.Update(ctx, hoarders["ConfigMap"](metav1.ObjectMeta{Namespace: ns, Name: "x-0", Labels: map[string]string{"x": fmt.Sprint(i % 10)}}))
	}
}

// live creates, stops and deletes a VM.
func live(t *testing.T, user client.Client, ns string) {
	t.Helper()
	vm := create(t, user, framework.NewVM("vm").Namespace(ns).Obj())
	waitForPhase := func(want api.Phase) {
		t.Helper()
		assert.Eventually(t, "the VM is "+string(want), func(t testing.TB) error {
			if err := user.Get(t.Context(), client.ObjectKeyFromObject(vm), vm); err != nil || vm.Status.Phase == want {
				return err
			}
			return errors.New(string(vm.Status.Phase))
		})
	}
	waitForPhase(api.PhaseActive)
	assert.NoError(t, user.Patch(t.Context(), vm, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"action":"stopped"}}`))))
	waitForPhase(api.PhaseStopped)
	assert.NoError(t, user.Delete(t.Context(), vm))
	waitForDeletion(t, user, vm)
}
