// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/rbac"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestGarbageCollectionOfANewKind checks that kinds that are added later are collected too.
// TestCascadingDeletion of test/integration checks that of VirtualMachines.
func TestGarbageCollectionOfANewKind(t *testing.T) {
	t.Parallel() // it looks for new kinds every 30 s
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	installThingCRD(t, c)
	owner := create(t, c, newConfigMap(ns, "owner"))
	thing := newObject("example.com/v1", "Thing", "thing", nil)
	thing.SetNamespace(ns)
	thing.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}})
	assert.Eventually(t, "the new kind is served", func(t testing.TB) error { return c.Create(t.Context(), thing.DeepCopy()) })
	assert.NoError(t, c.Delete(t.Context(), owner))
	waitForDeletion(t, c, thing)
}

func newObject(apiVersion, kind, name string, content map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": content}}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetName(name)
	return object
}

func installThingCRD(t *testing.T, c client.Client) {
	t.Helper()
	crd := create(t, c, newObject("apiextensions.k8s.io/v1", "CustomResourceDefinition", "things.example.com", map[string]any{
		"group": "example.com", "scope": "Namespaced",
		"names": map[string]any{"kind": "Thing", "plural": "things"},
		"versions": []any{map[string]any{
			"name": "v1", "served": true, "storage": true,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
		}},
	}))
	t.Cleanup(func() { _ = c.Delete(context.Background(), crd) })
}

func TestNamespaceDeletionRemovesItsObjects(t *testing.T) {
	t.Parallel()
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	for i := range 20 {
		name := fmt.Sprintf("object-%d", i)
		create(t, c, newConfigMap(ns, name))
		create(t, c, framework.NewVM(name).Namespace(ns).Obj())
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	assert.NoError(t, c.Delete(t.Context(), namespace))
	waitForDeletion(t, c, namespace)
}

func TestServiceAccountsHaveTokensAndNoRights(t *testing.T) {
	t.Parallel()
	c := objectsFor(t, shared.Config)
	ns := newNamespace(t, c)
	account := waitForServiceAccount(t, c, ns)
	request := &authenticationv1.TokenRequest{}
	assert.NoError(t, c.SubResource("token").Create(t.Context(), account, request))
	for name, bearer := range map[string]string{"requested": request.Status.Token, "from a Secret": secretToken(t, c, ns)} {
		err := withToken(t, bearer).List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))
		assert.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "system:serviceaccount:"+ns+":default"), "%s token without rights: %v", name, err)
	}
	create(t, c, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	})
	user := withToken(t, request.Status.Token)
	assert.Eventually(t, "the role takes effect", func(t testing.TB) error {
		return user.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns))
	})
	err := user.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns))
	assert.True(t, apierrors.IsForbidden(err), "a viewer reads secrets: %v", err)
}

// secretToken returns a long-lived token, which a controller fills in.
func secretToken(t *testing.T, c client.Client, ns string) string {
	t.Helper()
	secret := create(t, c, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	})
	assert.Eventually(t, "the Secret has a token", func(t testing.TB) error {
		err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)
		if err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("empty")
		}
		return err
	})
	return string(secret.Data[corev1.ServiceAccountTokenKey])
}

func withToken(t *testing.T, token string) client.Client {
	t.Helper()
	config := rest.AnonymousClientConfig(shared.Config)
	config.BearerToken = token
	return objectsFor(t, config)
}

// waitForRules waits until a ClusterRole has these rules among others.
func waitForRules(t *testing.T, c client.Client, name string, rules []rbacv1.PolicyRule) {
	t.Helper()
	assert.Eventually(t, name+" has the new rules", func(t testing.TB) error {
		role := roleOf(t, c, name)
		for _, rule := range rules {
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
				return fmt.Errorf("it has no %v", rule)
			}
		}
		return nil
	})
}

func roleOf(t testing.TB, c client.Client, name string) *rbacv1.ClusterRole {
	t.Helper()
	role := &rbacv1.ClusterRole{}
	assert.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: name}, role))
	return role
}

// checkUserRoles checks that the roles of config/rbac are installed, and that view, edit and admin
// have their rules. test/manifests checks what they allow.
func checkUserRoles(t *testing.T, cluster *framework.Cluster) {
	t.Helper()
	c := objectsFor(t, cluster.Config)
	for name, want := range builtInRoles(t) {
		got := roleOf(t, c, "drover-"+name)
		assert.True(t, equality.Semantic.DeepEqual(got.Rules, want.Rules) && equality.Semantic.DeepEqual(got.Labels, want.Labels),
			"drover-%s is\n%v %v, want\n%v %v", name, got.Labels, got.Rules, want.Labels, want.Rules)
		waitForRules(t, c, name, want.Rules)
	}
}

// damageUserRoles changes a role and deletes another one, which a start restores.
func damageUserRoles(t *testing.T, cluster *framework.Cluster) {
	t.Helper()
	c := objectsFor(t, cluster.Config)
	view := roleOf(t, c, "drover-view")
	view.Labels, view.Rules = nil, nil
	assert.NoError(t, errors.Join(c.Update(t.Context(), view), c.Delete(t.Context(), roleOf(t, c, "drover-edit"))))
}

// builtInRoles returns the roles of config/rbac by the role of Kubernetes that each is
// added to.
func builtInRoles(t *testing.T) map[string]*rbacv1.ClusterRole {
	t.Helper()
	roles := map[string]*rbacv1.ClusterRole{}
	for text := range strings.SplitSeq(string(rbac.UserRoles), "\n---\n") {
		role := &rbacv1.ClusterRole{}
		assert.NoError(t, yaml.UnmarshalStrict([]byte(text), role))
		roles[strings.TrimPrefix(role.Name, "drover-")] = role
	}
	assert.Require(t, len(roles) == 3, "there are %d roles, want 3", len(roles))
	return roles
}

func TestUnauthenticatedRequestsAreRejected(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/namespaces", "/readyz", "/version"} {
		anonymous := clientFor(t, rest.AnonymousClientConfig(shared.Config))
		var code int
		anonymous.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&code)
		assert.Equal(t, "GET "+path+" without a certificate", code, http.StatusUnauthorized)
	}
}

// TestOnlyTheAPIListens checks that only the API can be reached. etcd in particular listens
// only on a socket in a folder that other users cannot enter.
func TestOnlyTheAPIListens(t *testing.T) {
	t.Parallel()
	own := socketsOf(t, shared.PID())
	var listening []string
	for _, table := range []string{"tcp", "tcp6"} {
		for _, line := range readProcNet(t, shared.PID(), table) {
			// local address, remote address, state 0A for LISTEN, ..., inode
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
				listening = append(listening, f[1])
			}
		}
	}
	assert.True(t, len(listening) == 1 && strings.HasPrefix(listening[0], "0100007F:"), "listens on %v, want one port of 127.0.0.1", listening)
	for _, line := range readProcNet(t, shared.PID(), "unix") {
		// flags 00010000 for listening, type, state, inode, path
		f := strings.Fields(line)
		if len(f) < 7 || f[3] != "00010000" || !own[f[6]] {
			continue
		}
		assert.True(t, len(f) >= 8 && strings.HasPrefix(f[7], filepath.Join(shared.DataDir, "run")+"/"), "listens on a socket outside of the data dir: %v", f)
	}
}

func socketsOf(t *testing.T, pid int) map[string]bool {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	assert.Require(t, err == nil && len(links) != 0, "no open files of %d: %v", pid, err)
	inode := regexp.MustCompile(`^socket:\[(\d+)\]$`)
	found := map[string]bool{}
	for _, link := range links {
		target, _ := os.Readlink(link) // it may be closed by now
		if m := inode.FindStringSubmatch(target); m != nil {
			found[m[1]] = true
		}
	}
	return found
}

func readProcNet(t *testing.T, pid int, table string) []string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	assert.NoError(t, err)
	return nonEmptyLines(string(data))
}

func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(shared.DataDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		// The data dir itself is closed to other users; secrets are also closed
		// individually.
		secret := strings.HasSuffix(path, ".pem") || strings.HasSuffix(path, ".key") || strings.HasSuffix(path, "kubeconfig")
		assert.True(t, (path != shared.DataDir && !secret) || info.Mode().Perm()&0o077 == 0, "%s has mode %v", path, info.Mode())
		return nil
	})
	assert.NoError(t, err)
}

// TestNodeAPIsAreNotServed checks that kinds that need nodes are not served, rather than
// accepted and ignored.
func TestNodeAPIsAreNotServed(t *testing.T) {
	t.Parallel()
	groups, err := clientFor(t, shared.Config).Discovery().ServerGroups()
	assert.NoError(t, err)
	for _, g := range groups.Groups {
		assert.True(t, !slices.Contains([]string{"apps", "batch", "storage.k8s.io", "scheduling.k8s.io"}, g.Name), "group %s is served", g.Name)
	}
}
