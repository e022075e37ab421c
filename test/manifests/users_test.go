// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// The namespaces of testUsers: its users have roles in the first one.
const (
	usersNamespace = "users"
	otherNamespace = "others"
)

// rank orders the roles of Kubernetes by their rights. A role of Drover has the rank of
// the one that it is added to.
type rank int

const (
	rankNone rank = iota
	rankView
	rankEdit
	rankAdmin
	rankNever // more than any user has
)

var userRanks = map[string]rank{
	"": rankNone, "view": rankView, "edit": rankEdit, "admin": rankAdmin,
	"drover-view": rankView, "drover-edit": rankEdit, "drover-admin": rankAdmin,
}

// user is someone with a role, or none, and one kind of credentials.
type user struct {
	role        string
	credentials string
	vms, others dynamic.ResourceInterface
	// info is what the API server takes the user for.
	info authenticationv1.UserInfo
}

func (u user) rank() rank { return userRanks[u.role] }

// testUsers checks what users may do with VirtualMachines: with each role of Kubernetes
// that Drover's roles are added to, with each of Drover's roles alone, and with none;
// impersonated, with a ServiceAccount's token and with a client certificate. The gate has one of these for each role.
func testUsers(t *testing.T, w *testenv.Environment) {
	for _, ns := range []string{usersNamespace, otherNamespace} {
		w.CreateVM(t, unservedVM("vm").Namespace(ns).Bound("docker/engine"))
	}
	controller := kubernetes.NewForConfigOrDie(accountUser(t, w))
	users := createUsers(t, w)
	waitForRoles(t, controller, users)
	for _, u := range users {
		t.Run(cmp.Or(u.role, "none")+" by "+u.credentials, func(t *testing.T) {
			checkRequests(t, u)
			checkReviews(t, controller, u)
		})
		if u.role == "edit" {
			t.Run("an editor and the controller's fields", func(t *testing.T) { checkControllerFields(t, u) })
		}
	}
}

// createUser creates a user of the API server.
type createUser func(t *testing.T, w *testenv.Environment, name string) (*rest.Config, rbacv1.Subject)

// createUsers returns a user for each role and kind of credentials.
func createUsers(t *testing.T, w *testenv.Environment) []user {
	t.Helper()
	kinds := []struct {
		name   string
		create createUser
	}{{"impersonation", impersonatedUser}, {"token", tokenUser}, {"certificate", certificateUser}}
	var users []user
	for r, role := range slices.Sorted(maps.Keys(userRanks)) {
		for k, kind := range kinds {
			if !tier.IsFull() && k != r%len(kinds) {
				continue
			}
			config, subject := kind.create(t, w, kind.name+"-"+cmp.Or(role, "none"))
			if role != "" {
				w.Bind(t, usersNamespace, role, subject)
			}
			config.QPS = -1
			users = append(users, newUser(t, role, kind.name, config))
		}
	}
	return users
}

func newUser(t *testing.T, role, credentials string, config *rest.Config) user {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	assert.NoError(t, err)
	self, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	assert.NoError(t, err)
	vms := client.Resource(api.SchemeGroupVersion.WithResource("virtualmachines"))
	return user{
		role: role, credentials: credentials, info: self.Status.UserInfo,
		vms: vms.Namespace(usersNamespace), others: vms.Namespace(otherNamespace),
	}
}

func impersonatedUser(_ *testing.T, w *testenv.Environment, name string) (*rest.Config, rbacv1.Subject) {
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name}
	return config, testenv.Person(name)
}

func tokenUser(t *testing.T, w *testenv.Environment, name string) (*rest.Config, rbacv1.Subject) {
	return w.NewAccount(t, usersNamespace, name)
}

func certificateUser(t *testing.T, w *testenv.Environment, name string) (*rest.Config, rbacv1.Subject) {
	return w.NewPerson(t, name)
}

// waitForRoles waits until the API server applies the bindings and the aggregated rules.
func waitForRoles(t *testing.T, controller kubernetes.Interface, users []user) {
	t.Helper()
	for _, u := range users {
		assert.Eventually(t, "the rights of "+u.info.Username, func(t testing.TB) error {
			for _, r := range []review{{rankView, "get", "log"}, {rankEdit, "create", "console"}} {
				if got, want := isAllowed(t, controller, u, usersNamespace, r), u.rank() >= r.least; got != want {
					return fmt.Errorf("%s %s: allowed: %v", r.verb, r.subresource, got)
				}
			}
			return nil
		})
	}
}

// request is one that a user sends to the API server.
type request struct {
	least rank
	send  func(ctx context.Context, vms dynamic.ResourceInterface) error
}

// dryRun tries a request without an effect.
var dryRun = []string{metav1.DryRunAll}

// requests returns every request that the API server knows for VirtualMachines.
func requests() map[string]request {
	all := readRequests()
	maps.Copy(all, writeRequests())
	return all
}

func readRequests() map[string]request {
	return map[string]request{
		"get": {rankView, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.Get(ctx, "vm", metav1.GetOptions{})
			return err
		}},
		"get the status": {rankView, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.Get(ctx, "vm", metav1.GetOptions{}, "status")
			return err
		}},
		"list": {rankView, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.List(ctx, metav1.ListOptions{})
			return err
		}},
		"watch": {rankView, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			w, err := vms.Watch(ctx, metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		}},
	}
}

func writeRequests() map[string]request {
	return map[string]request{
		"create": {rankEdit, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.Create(ctx, newUnstructuredVM("new"), metav1.CreateOptions{DryRun: dryRun})
			return err
		}},
		"update": {rankEdit, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.Update(ctx, newUnstructuredVM("vm"), metav1.UpdateOptions{DryRun: dryRun})
			return err
		}},
		"patch": {rankEdit, patchRequest(`{"spec":{"action":"stopped"}}`)},
		"delete": {rankEdit, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			return vms.Delete(ctx, "vm", metav1.DeleteOptions{DryRun: dryRun})
		}},
		"delete all": {rankEdit, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			return vms.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dryRun}, metav1.ListOptions{})
		}},
		"patch the status": {rankNever, patchRequest(`{"status":{"phase":"Active"}}`, "status")},
		"update the status": {rankNever, func(ctx context.Context, vms dynamic.ResourceInterface) error {
			_, err := vms.UpdateStatus(ctx, newUnstructuredVM("vm"), metav1.UpdateOptions{DryRun: dryRun})
			return err
		}},
	}
}

func patchRequest(patch string, subresources ...string) func(context.Context, dynamic.ResourceInterface) error {
	return func(ctx context.Context, vms dynamic.ResourceInterface) error {
		_, err := vms.Patch(ctx, "vm", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun}, subresources...)
		return err
	}
}

func newUnstructuredVM(name string) *unstructured.Unstructured {
	vm := unservedVM(name).Namespace("").Obj()
	vm.APIVersion, vm.Kind = api.SchemeGroupVersion.String(), "VirtualMachine"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	if err != nil {
		panic(err)
	}
	delete(content, "status")
	return &unstructured.Unstructured{Object: content}
}

func checkRequests(t *testing.T, u user) {
	t.Helper()
	for name, r := range requests() {
		if err := r.send(t.Context(), u.vms); !isAnswer(err, u.rank() >= r.least) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.send(t.Context(), u.others); !isAnswer(err, false) {
			t.Errorf("%s in another namespace: %v", name, err)
		}
	}
}

func isAnswer(err error, allowed bool) bool {
	if allowed {
		// An update needs a resourceVersion, which comes after the permission.
		return err == nil || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "metadata.resourceVersion")
	}
	return apierrors.IsForbidden(err)
}

// review is a question that Drover asks before it serves a stream.
type review struct {
	least       rank
	verb        string
	subresource string
}

// reviews are the questions of Drover, and others that must be denied.
func reviews() []review {
	all := []review{
		{rankEdit, "create", string(streams.Console)},
		{rankEdit, "create", string(streams.Exec)},
		{rankEdit, "create", string(streams.PortForward)},
		{rankView, "get", string(streams.Log)},
		{rankView, "get", string(streams.Interfaces)},
		{rankView, "get", string(streams.Decisions)},
	}
	for _, sub := range []string{"console", "exec", "portforward", "log", "interfaces", "decisions", "status", "finalizers"} {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			known := sub == "status" && verb == "get" ||
				slices.ContainsFunc(all, func(r review) bool { return r.verb == verb && r.subresource == sub })
			if !known {
				all = append(all, review{rankNever, verb, sub})
			}
		}
	}
	return all
}

// checkReviews asks what Drover asks, with the rights of its controller.
func checkReviews(t *testing.T, controller kubernetes.Interface, u user) {
	t.Helper()
	for _, r := range reviews() {
		if got, want := isAllowed(t, controller, u, usersNamespace, r), u.rank() >= r.least; got != want {
			t.Errorf("%s %s: allowed: %v, want %v", r.verb, r.subresource, got, want)
		}
		if isAllowed(t, controller, u, otherNamespace, r) {
			t.Errorf("%s %s is allowed in another namespace", r.verb, r.subresource)
		}
	}
}

func isAllowed(t testing.TB, controller kubernetes.Interface, u user, ns string, r review) bool {
	t.Helper()
	answer, err := controller.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.info.Username, UID: u.info.UID, Groups: u.info.Groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: ns, Name: "vm", Verb: r.verb,
				Group: api.SchemeGroupVersion.Group, Resource: "virtualmachines", Subresource: r.subresource,
			},
		},
	}, metav1.CreateOptions{})
	assert.NoError(t, err)
	return answer.Status.Allowed
}

// checkControllerFields checks that an editor changes no status by a patch of the object,
// and can remove the finalizer, as of every object that one may patch.
func checkControllerFields(t *testing.T, u user) {
	t.Helper()
	patch := []byte(`{"metadata":{"finalizers":null},"status":{"binding":{"driver":"docker","engineID":"mine"}}}`)
	vm, err := u.vms.Patch(t.Context(), "vm", types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	assert.NoError(t, err)
	if _, found, _ := unstructured.NestedMap(vm.Object, "status", "binding"); found {
		t.Error("it has changed the binding")
	}
	if len(vm.GetFinalizers()) != 0 {
		t.Errorf("the finalizers are %q", vm.GetFinalizers())
	}
}
