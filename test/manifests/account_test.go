// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

const accountName = "drover-controller"

// TestAccount runs one controller that has only the rights of config/rbac, for all tests of the controller's
// rights and of users' rights.
func TestAccount(t *testing.T) {
	t.Parallel()
	w := testenv.Start(t)
	framework.RunKubectl(t, w.Kubeconfig, "apply", "-k", configPath("rbac"), "--validate=strict")
	for _, ns := range []string{usersNamespace, otherNamespace} {
		w.CreateNamedNamespace(t, ns)
	}
	dir, metrics, streams := t.TempDir(), framework.FreeAddress(t), framework.FreeAddress(t)
	_, err := framework.WriteServerCertificate(dir)
	assert.NoError(t, err)
	controller := startControllerAs(t, w, "--metrics-secure", "--metrics-bind-address="+metrics,
		"--streams-address="+streams, "--streams-cert-dir="+dir, "--streams-url=https://"+streams)
	t.Run("allowed", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *testenv.Environment){
			"life": testLife, "permissions": testPermissions, "streams": testStreams, "users": testUsers,
			"metrics": func(t *testing.T, w *testenv.Environment) { testMetrics(t, w, metrics) },
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, w) })
		}
	})
	// Every request was allowed, including those whose refusal the controller would not report otherwise.
	assert.True(t, !strings.Contains(controller.Output(), "forbidden"), "a request of the controller was forbidden")
	t.Run("secrets", func(t *testing.T) { testSecrets(t, w) })
	controller.MustStop()
}

// testLife creates, stops, starts, resizes and deletes a VM.
func testLife(t *testing.T, w *testenv.Environment) {
	vm := w.CreateActiveVM(t, fakeVM("life"))
	w.WaitForEvent(t, vm, api.EventCreated)
	w.WaitForVM(t, vm, framework.HasUsage)
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionStopped })
	w.WaitForVM(t, vm, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked))
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionActive })
	w.WaitForVM(t, vm, framework.IsActive)
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = resource.MustParse("500m") })
	w.WaitForVM(t, vm, framework.IsActive)
	got := w.ReadFakeServer(t, vm.UID).CPUMilli
	assert.True(t, got == 500, "the server has %d thousandths of a CPU, want 500", got)
	w.DeleteVM(t, vm)
	w.WaitForDeletion(t, vm)
	assert.True(t, w.ReadFakeServer(t, vm.UID) == nil, "the server is still there")
}

// testSecrets checks that a Secret is read in a namespace with the RoleBinding, and that the VM in
// another namespace reports the missing permission until it is granted.
func testSecrets(t *testing.T, w *testenv.Environment) {
	bound, unbound := w.CreateNamespace(t), w.CreateNamespace(t)
	bindSecrets(t, w, bound)
	for _, ns := range []string{bound, unbound} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "init"}, StringData: map[string]string{"user-data": "#cloud-config\n"}}
		_, err := w.KubeClient.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{})
		assert.NoError(t, err)
	}
	served := w.CreateActiveVM(t, fakeVM("served").Namespace(bound).UserDataSecret("init", "user-data"))
	assert.True(t, w.ReadFakeServer(t, served.UID).HasUserData, "the server got no user-data")

	refused := w.CreateVM(t, fakeVM("refused").Namespace(unbound).UserDataSecret("init", "user-data"))
	w.WaitForVM(t, refused, framework.HasPhase(api.PhaseFailed, api.ReasonSecretUnavailable),
		framework.HasMessage("spec.userData"), framework.HasMessage(`"init"`), framework.HasMessage("forbidden"),
		framework.HasMessage("system:serviceaccount:"+namespace+":"+accountName), framework.HasMessage(`namespace "`+unbound+`"`))
	assert.True(t, w.ReadFakeServer(t, refused.UID) == nil, "a server was created without its user-data")
	bindSecrets(t, w, unbound)
	w.WaitForVM(t, refused, framework.IsActive)
}

// bindSecrets lets the controller read the Secrets of a namespace, as docs/cluster-operations.md describes.
func bindSecrets(t *testing.T, w *testenv.Environment, ns string) {
	t.Helper()
	framework.RunKubectl(t, w.Kubeconfig, "create", "rolebinding", "drover-secrets-reader", "--namespace", ns,
		"--clusterrole", "drover-secrets-reader", "--serviceaccount", namespace+":"+accountName)
	waitForAccess(t, w, true, authorizationv1.ResourceAttributes{Namespace: ns, Verb: "get", Resource: "secrets"})
}

// waitForAccess waits until the API server applies a change of the controller's rights.
func waitForAccess(t *testing.T, w *testenv.Environment, may bool, attributes authorizationv1.ResourceAttributes) {
	t.Helper()
	controller := authenticationv1.UserInfo{Username: "system:serviceaccount:" + namespace + ":" + accountName}
	assert.Eventually(t, fmt.Sprintf("%+v is allowed: %t", attributes, may), func(t testing.TB) error {
		return assert.ErrorUnless(isAllowed(t, w.KubeClient, controller, attributes) == may, "the answer is still %t", !may)
	})
}

// isAllowed asks the API server as one user whether another user may do something.
func isAllowed(t testing.TB, who kubernetes.Interface, user authenticationv1.UserInfo, attributes authorizationv1.ResourceAttributes) bool {
	t.Helper()
	answer, err := who.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, ResourceAttributes: &attributes},
	}, metav1.CreateOptions{})
	assert.NoError(t, err)
	return answer.Status.Allowed
}

func fakeVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver("fake").GracePeriod(5)
}

// unservedVM returns a VM of a driver that no controller of these tests enables.
func unservedVM(name string) *framework.VMBuilder { return framework.NewVM(name).Driver("docker") }

// startControllerAs starts a controller with only the ServiceAccount's token, and with the
// Deployment's flags that concern rights.
//
// Only one test at a time may run such a controller, as all share a Lease.
func startControllerAs(t *testing.T, w *testenv.Environment, args ...string) *testenv.ControllerProcess {
	t.Helper()
	as := &testenv.Environment{
		Environment: &framework.Environment{Cluster: &framework.Cluster{Kubeconfig: testenv.WriteKubeconfig(t, accountUser(t, w))}},
		FakeDir:     w.FakeDir,
	}
	args = append([]string{"--vm-driver=fake", "--usage-period=1s", "--leader-elect", "--lease-lock-namespace=" + namespace}, args...)
	return as.StartControllerProcess(t, []string{"POD_NAME=drover-controller-0"}, args...)
}

// accountUser is a client with the token of the controller's ServiceAccount and no other credentials.
func accountUser(t *testing.T, w *testenv.Environment) *rest.Config {
	t.Helper()
	return w.TokenUser(w.RequestToken(t, namespace, accountName))
}

// testPermissions queries the API server for the rights of the account.
func testPermissions(t *testing.T, w *testenv.Environment) {
	controller := newUser(t, "", "token", accountUser(t, w))
	check := func(t testing.TB, p permission) error {
		resource, sub, _ := strings.Cut(p.resource, "/")
		return assert.ErrorUnless(isAllowed(t, w.KubeClient, controller.info, authorizationv1.ResourceAttributes{
			Verb: p.verb, Group: p.group, Resource: resource, Subresource: sub, Namespace: p.ns, Name: p.name,
		}) == p.may, "%+v: it is not so", p)
	}
	for _, p := range permissions { // bindings take effect one by one
		if p.may {
			assert.Eventually(t, "the permission", func(t testing.TB) error { return check(t, p) })
		}
	}
	for _, p := range permissions {
		assert.ReportError(t, check(t, p))
	}
	t.Run("list the Lease by its name", func(t *testing.T) {
		leases := controller.client.CoordinationV1().Leases(namespace)
		_, err := leases.List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + accountName})
		assert.NoError(t, err)
		_, err = leases.List(t.Context(), metav1.ListOptions{})
		assert.True(t, apierrors.IsForbidden(err), "the account may list all Leases: error %v", err)
	})
}

type permission struct {
	may                             bool
	verb, group, resource, ns, name string
}

const vms, leases = "cloudnative.tw", "coordination.k8s.io"

var permissions = []permission{
	{true, "list", vms, "virtualmachines", "", ""},
	{true, "watch", vms, "virtualmachines", "", ""},
	{true, "patch", vms, "virtualmachines", "default", "x"},
	{true, "update", vms, "virtualmachines/status", "default", "x"},
	{false, "create", vms, "virtualmachines", "default", ""},
	{false, "delete", vms, "virtualmachines", "default", "x"},
	{false, "deletecollection", vms, "virtualmachines", "default", ""},
	// Streams are opened with the user's rights, never with the controller's.
	{false, "create", vms, "virtualmachines/console", "default", "x"},
	{false, "create", vms, "virtualmachines/exec", "default", "x"},
	{false, "get", vms, "virtualmachines/log", "default", "x"},
	{true, "create", "events.k8s.io", "events", "default", ""},
	{true, "patch", "", "events", "default", ""},
	{false, "delete", "events.k8s.io", "events", "default", "x"},
	{false, "get", "", "secrets", "default", "x"},
	{false, "list", "", "secrets", "", ""},
	{false, "watch", "", "secrets", namespace, ""},
	{false, "get", "", "secrets", namespace, "drover-engine-tls"},
	{true, "get", "", "namespaces", "", "kube-system"},
	{false, "get", "", "namespaces", "", "default"},
	{false, "list", "", "namespaces", "", ""},
	{false, "get", "", "nodes", "", "x"},
	{false, "list", "", "nodes", "", ""},
	{false, "get", "", "configmaps", namespace, "x"},
	{true, "get", "", "configmaps", "kube-system", "drover-orphan-approvals"},
	{false, "get", "", "configmaps", "kube-system", "x"},
	{false, "update", "", "configmaps", "kube-system", "drover-orphan-approvals"},
	{false, "get", "", "configmaps", "default", "drover-orphan-approvals"},
	{false, "patch", "", "configmaps", namespace, "x"},
	{true, "patch", "", "configmaps", "kube-system", "drover-streams"},
	{true, "create", "", "configmaps", "kube-system", "drover-streams"},
	{false, "create", "", "configmaps", "kube-system", ""},
	{false, "delete", "", "configmaps", "kube-system", "drover-streams"},
	{false, "patch", "", "configmaps", namespace, "drover-streams"},
	{true, "get", "", "configmaps", "kube-system", "extension-apiserver-authentication"},
	{false, "create", "", "pods", namespace, ""},
	{false, "create", "", "serviceaccounts/token", namespace, accountName},
	{true, "get", "", "serviceaccounts", "default", "x"},
	{false, "list", "", "serviceaccounts", "default", ""},
	{true, "create", "authentication.k8s.io", "tokenreviews", "", ""},
	{true, "create", "authorization.k8s.io", "subjectaccessreviews", "", ""},
	{true, "create", leases, "leases", namespace, ""},
	{true, "get", leases, "leases", namespace, accountName},
	{true, "watch", leases, "leases", namespace, accountName},
	{true, "update", leases, "leases", namespace, accountName},
	{false, "delete", leases, "leases", namespace, accountName},
	{false, "update", leases, "leases", namespace, "another"},
	{false, "list", leases, "leases", namespace, ""},
	{false, "create", leases, "leases", "default", ""},
	{false, "bind", "rbac.authorization.k8s.io", "clusterroles", "", "drover-secrets-reader"},
	{false, "impersonate", "", "users", "", "admin"},
}
