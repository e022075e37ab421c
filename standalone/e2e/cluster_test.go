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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/rbac"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

var vms = schema.GroupVersionResource{Group: "cloudnative.tw", Version: "v1alpha1", Resource: "virtualmachines"}

// newVM returns a VM that belongs to the owner, as the VMs of a set would.
func newVM(name string, owner *corev1.ConfigMap) *unstructured.Unstructured {
	vm := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"resource": map[string]any{"cpu": "1", "memory": "1G"}},
	}}
	vm.SetAPIVersion("cloudnative.tw/v1alpha1")
	vm.SetKind("VirtualMachine")
	vm.SetName(name)
	if owner != nil {
		vm.SetOwnerReferences([]metav1.OwnerReference{ownerReference(owner)})
	}
	return vm
}

func ownerReference(owner *corev1.ConfigMap) metav1.OwnerReference {
	block := true
	return metav1.OwnerReference{
		APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: &block,
	}
}

// TestOwnerDeletion checks that the garbage collector, which starts after the CRD is
// installed, knows VirtualMachines.
func TestOwnerDeletion(t *testing.T) {
	t.Parallel()
	for policy, dependentStays := range map[metav1.DeletionPropagation]bool{
		metav1.DeletePropagationForeground: false,
		metav1.DeletePropagationBackground: false,
		metav1.DeletePropagationOrphan:     true,
	} {
		t.Run(string(policy), func(t *testing.T) {
			client, objects := clientFor(t, shared.Config), dynamicFor(t, shared.Config)
			ns := newNamespace(t, client)
			owner := createConfigMap(t, client, ns, newConfigMap("owner"))
			createVM(t, objects, ns, newVM("vm", owner))
			waitForGarbageCollector(t, objects, ns)

			err := client.CoreV1().ConfigMaps(ns).Delete(t.Context(), owner.Name, metav1.DeleteOptions{PropagationPolicy: &policy})
			assert.NoError(t, err)
			assert.Eventually(t, "the owner goes", func(t testing.TB) error {
				_, err := client.CoreV1().ConfigMaps(ns).Get(t.Context(), owner.Name, metav1.GetOptions{})
				return wantNotFound(err)
			})
			if dependentStays {
				assertOwnerReferenceRemoved(t, objects, ns)
				return
			}
			waitForDeletion(t, objects, ns, "vm")
		})
	}
}

// waitForGarbageCollector waits until the garbage collector has seen the VMs created so
// far. If an owner were deleted before, the collector would not know its dependents, and
// would collect them as orphans whatever the policy.
func waitForGarbageCollector(t *testing.T, objects dynamic.Interface, ns string) {
	t.Helper()
	missing := newConfigMap("missing")
	missing.UID = uuid.NewUUID()
	createVM(t, objects, ns, newVM("collected", missing))
	waitForDeletion(t, objects, ns, "collected")
}

func waitForDeletion(t *testing.T, objects dynamic.Interface, ns, name string) {
	t.Helper()
	assert.Eventually(t, name+" goes", func(t testing.TB) error {
		_, err := objects.Resource(vms).Namespace(ns).Get(t.Context(), name, metav1.GetOptions{})
		return wantNotFound(err)
	})
}

// assertOwnerReferenceRemoved waits until the owner reference is removed, which completes
// the garbage collector's work on this object.
func assertOwnerReferenceRemoved(t *testing.T, objects dynamic.Interface, ns string) {
	t.Helper()
	assert.Eventually(t, "the owner reference is removed", func(t testing.TB) error {
		vm, err := objects.Resource(vms).Namespace(ns).Get(t.Context(), "vm", metav1.GetOptions{})
		if err == nil && len(vm.GetOwnerReferences()) > 0 {
			err = fmt.Errorf("still owned: %v", vm.GetOwnerReferences())
		}
		return err
	})
}

func createVM(t *testing.T, objects dynamic.Interface, ns string, vm *unstructured.Unstructured) {
	t.Helper()
	if _, err := objects.Resource(vms).Namespace(ns).Create(t.Context(), vm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func wantNotFound(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return errors.New("it is still there")
}

// TestGarbageCollectionOfANewKind checks that kinds that are added later are collected too.
func TestGarbageCollectionOfANewKind(t *testing.T) {
	t.Parallel() // it looks for new kinds every 30 s
	client, objects := clientFor(t, shared.Config), dynamicFor(t, shared.Config)
	ns := newNamespace(t, client)
	things := installThingCRD(t, objects)
	owner := createConfigMap(t, client, ns, newConfigMap("owner"))
	thing := &unstructured.Unstructured{}
	thing.SetAPIVersion("example.com/v1")
	thing.SetKind("Thing")
	thing.SetName("thing")
	thing.SetOwnerReferences([]metav1.OwnerReference{ownerReference(owner)})
	assert.Eventually(t, "the new kind is served", func(t testing.TB) error {
		_, err := objects.Resource(things).Namespace(ns).Create(t.Context(), thing, metav1.CreateOptions{})
		return err
	})
	assert.NoError(t, client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "owner", metav1.DeleteOptions{}))
	assert.Eventually(t, "the dependent goes", func(t testing.TB) error {
		_, err := objects.Resource(things).Namespace(ns).Get(t.Context(), "thing", metav1.GetOptions{})
		return wantNotFound(err)
	})
}

func installThingCRD(t *testing.T, objects dynamic.Interface) schema.GroupVersionResource {
	t.Helper()
	crds := objects.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"kind": "Thing", "plural": "things"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}
	if _, err := crds.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = crds.Delete(context.Background(), "things.example.com", metav1.DeleteOptions{}) })
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
}

func TestNamespaceDeletionRemovesItsObjects(t *testing.T) {
	t.Parallel()
	client, objects := clientFor(t, shared.Config), dynamicFor(t, shared.Config)
	ns := newNamespace(t, client)
	for i := range 20 {
		name := fmt.Sprintf("object-%d", i)
		createConfigMap(t, client, ns, newConfigMap(name))
		createVM(t, objects, ns, newVM(name, nil))
	}
	assert.NoError(t, client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	assert.Eventually(t, "the namespace ends", func(t testing.TB) error {
		_, err := client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return wantNotFound(err)
	})
}

func TestServiceAccountsHaveTokensAndNoRights(t *testing.T) {
	t.Parallel()
	client := clientFor(t, shared.Config)
	ns := newNamespace(t, client)
	assert.Eventually(t, "the namespace has its service account", func(t testing.TB) error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	token, err := client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	assert.NoError(t, err)
	for name, bearer := range map[string]string{"requested": token.Status.Token, "from a Secret": secretToken(t, client, ns)} {
		user := clientWithToken(t, bearer)
		_, err := user.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:"+ns+":default") {
			t.Errorf("%s token without rights: %v", name, err)
		}
	}
	bindRole(t, client, ns, "view")
	user := clientWithToken(t, token.Status.Token)
	assert.Eventually(t, "the role takes effect", func(t testing.TB) error {
		_, err := user.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{})
		return err
	})
	if _, err := user.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a viewer reads secrets: %v", err)
	}
}

// secretToken returns a long-lived token, which a controller fills in.
func secretToken(t *testing.T, client kubernetes.Interface, ns string) string {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if _, err := client.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var token string
	assert.Eventually(t, "the Secret has a token", func(t testing.TB) error {
		filled, err := client.CoreV1().Secrets(ns).Get(t.Context(), "token", metav1.GetOptions{})
		if err == nil && len(filled.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("empty")
		}
		if err == nil {
			token = string(filled.Data[corev1.ServiceAccountTokenKey])
		}
		return err
	})
	return token
}

func clientWithToken(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(shared.Config)
	config.BearerToken = token
	return clientFor(t, config)
}

func bindRole(t *testing.T, client kubernetes.Interface, ns, role string) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	}
	if _, err := client.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestRolesAggregate(t *testing.T) {
	t.Parallel()
	client := clientFor(t, shared.Config)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "view-things",
			Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"},
		},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"example.org"}, Resources: []string{"things"}, Verbs: []string{"get", "list"}}},
	}
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.RbacV1().ClusterRoles().Delete(context.Background(), role.Name, metav1.DeleteOptions{})
	})
	waitForRules(t, client, "view", role.Rules)
}

// waitForRules waits until a ClusterRole has these rules among others.
func waitForRules(t *testing.T, client kubernetes.Interface, name string, rules []rbacv1.PolicyRule) {
	t.Helper()
	assert.Eventually(t, name+" has the new rules", func(t testing.TB) error {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
				return fmt.Errorf("it has no %v", rule)
			}
		}
		return nil
	})
}

// checkUserRoles checks that the roles of config/rbac are installed, and that view, edit and admin
// have their rules. test/manifests checks what they allow.
func checkUserRoles(t *testing.T, c *framework.Cluster) {
	t.Helper()
	client := clientFor(t, c.Config)
	for name, want := range builtInRoles(t) {
		got, err := client.RbacV1().ClusterRoles().Get(t.Context(), "drover-"+name, metav1.GetOptions{})
		must(t, err)
		if !equality.Semantic.DeepEqual(got.Rules, want.Rules) || !equality.Semantic.DeepEqual(got.Labels, want.Labels) {
			t.Errorf("drover-%s is\n%v %v, want\n%v %v", name, got.Labels, got.Rules, want.Labels, want.Rules)
		}
		waitForRules(t, client, name, want.Rules)
	}
}

// damageUserRoles changes a role and deletes another one, which a start restores.
func damageUserRoles(t *testing.T, c *framework.Cluster) {
	t.Helper()
	roles := clientFor(t, c.Config).RbacV1().ClusterRoles()
	patch := []byte(`{"metadata":{"labels":null},"rules":[]}`)
	_, err := roles.Patch(t.Context(), "drover-view", types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
	must(t, roles.Delete(t.Context(), "drover-edit", metav1.DeleteOptions{}))
}

// builtInRoles returns the roles of config/rbac by the role of Kubernetes that each is
// added to.
func builtInRoles(t *testing.T) map[string]*rbacv1.ClusterRole {
	t.Helper()
	roles := map[string]*rbacv1.ClusterRole{}
	for text := range strings.SplitSeq(string(rbac.UserRoles), "\n---\n") {
		role := &rbacv1.ClusterRole{}
		must(t, yaml.UnmarshalStrict([]byte(text), role))
		roles[strings.TrimPrefix(role.Name, "drover-")] = role
	}
	if len(roles) != 3 {
		t.Fatalf("there are %d roles, want 3", len(roles))
	}
	return roles
}

func must(t testing.TB, err error) {
	t.Helper()
	assert.NoError(t, err)
}

func TestUnauthenticatedRequestsAreRejected(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/namespaces", "/readyz", "/version"} {
		anonymous := clientFor(t, rest.AnonymousClientConfig(shared.Config))
		var code int
		anonymous.Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&code)
		if code != http.StatusUnauthorized {
			t.Errorf("GET %s without a certificate: %d", path, code)
		}
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
	if len(listening) != 1 || !strings.HasPrefix(listening[0], "0100007F:") {
		t.Errorf("listens on %v, want one port of 127.0.0.1", listening)
	}
	for _, line := range readProcNet(t, shared.PID(), "unix") {
		// flags 00010000 for listening, type, state, inode, path
		f := strings.Fields(line)
		if len(f) < 7 || f[3] != "00010000" || !own[f[6]] {
			continue
		}
		if len(f) < 8 || !strings.HasPrefix(f[7], filepath.Join(shared.DataDir, "run")+"/") {
			t.Errorf("listens on a socket outside of the data dir: %v", f)
		}
	}
}

func socketsOf(t *testing.T, pid int) map[string]bool {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Fatalf("no open files of %d: %v", pid, err)
	}
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
		if (path == shared.DataDir || secret) && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
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
		if slices.Contains([]string{"apps", "batch", "storage.k8s.io", "scheduling.k8s.io"}, g.Name) {
			t.Errorf("group %s is served", g.Name)
		}
	}
}
