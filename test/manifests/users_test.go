// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// Namespaces of testUsers. The users have roles only in the first.
const (
	usersNamespace = "users"
	otherNamespace = "others"
)

// rank orders the roles of Kubernetes by their rights. A role of Drover has the rank of the
// Kubernetes role that it is aggregated to.
type rank int

const (
	rankNone rank = iota
	rankView
	rankEdit
	rankAdmin
	rankNever // above every user's rank
)

var userRanks = map[string]rank{
	"": rankNone, "view": rankView, "edit": rankEdit, "admin": rankAdmin,
	"drover-view": rankView, "drover-edit": rankEdit, "drover-admin": rankAdmin,
}

// user is a user of the API server with a role, or none, and one kind of credentials.
type user struct {
	role        string
	credentials string
	client      kubernetes.Interface
	// info is the user as the API server knows it.
	info authenticationv1.UserInfo
}

func (u user) rank() rank { return userRanks[u.role] }

// testUsers checks what users may do with VirtualMachines: with each role of Kubernetes
// that Drover's roles are added to, with each of Drover's roles alone, and with none;
// impersonated, with a ServiceAccount's token and with a client certificate. The gate tests one kind for each role.
func testUsers(t *testing.T, w *testenv.Environment) {
	for _, ns := range []string{usersNamespace, otherNamespace} {
		w.CreateVM(t, unservedVM("vm").Namespace(ns).Bound("docker/engine"))
	}
	controller := newUser(t, "", "token", accountUser(t, w)).client
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
			users = append(users, newUser(t, role, kind.name, config))
		}
	}
	return users
}

func newUser(t *testing.T, role, credentials string, config *rest.Config) user {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	assert.NoError(t, err)
	self, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	assert.NoError(t, err)
	return user{role, credentials, client, self.Status.UserInfo}
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
				if got, want := u.mayStream(t, controller, usersNamespace, r), u.rank() >= r.least; got != want {
					return fmt.Errorf("%s %s: allowed: %v", r.verb, r.subresource, got)
				}
			}
			return nil
		})
	}
}

// request is a request for VirtualMachines that a user sends to the API server.
type request struct {
	verb, path string
	body       string
}

// dryRun makes the API server try a request without an effect.
const dryRun = "?dryRun=All"

// requests are all kinds of request for VirtualMachines, with the least rank that may send them.
var requests = map[string]struct {
	least rank
	request
}{
	"get":               {rankView, request{http.MethodGet, "/vm", ""}},
	"get the status":    {rankView, request{http.MethodGet, "/vm/status", ""}},
	"list":              {rankView, request{http.MethodGet, "", ""}},
	"watch":             {rankView, request{http.MethodGet, "?watch=true", ""}},
	"create":            {rankEdit, request{http.MethodPost, dryRun, manifestOf("new", "example.org/note")}},
	"update":            {rankEdit, request{http.MethodPut, "/vm" + dryRun, manifestOf("vm", "example.org/note")}},
	"patch":             {rankEdit, request{http.MethodPatch, "/vm" + dryRun, `{"spec":{"action":"stopped"}}`}},
	"delete":            {rankEdit, request{http.MethodDelete, "/vm" + dryRun, ""}},
	"delete all":        {rankEdit, request{http.MethodDelete, dryRun, ""}},
	"patch the status":  {rankNever, request{http.MethodPatch, "/vm/status" + dryRun, `{"status":{"phase":"Active"}}`}},
	"update the status": {rankNever, request{http.MethodPut, "/vm/status" + dryRun, manifestOf("vm", "example.org/note")}},
}

// manifestOf returns the JSON of a VirtualMachine with an annotation.
func manifestOf(name, annotation string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"VirtualMachine","metadata":{"name":%q,"annotations":{%q:"a"}},
		"spec":{"driver":"docker","resource":{"cpu":1,"memory":"1Gi"}}}`, api.SchemeGroupVersion, name, annotation)
}

// send sends a request, and returns the answer unless it is a watch.
func (u user) send(ctx context.Context, ns string, r request) ([]byte, error) {
	contentType := "application/json"
	if r.verb == http.MethodPatch {
		contentType = string(types.MergePatchType)
	}
	answer, err := u.client.CoreV1().RESTClient().Verb(r.verb).
		RequestURI("/apis/"+api.SchemeGroupVersion.String()+"/namespaces/"+ns+"/virtualmachines"+r.path).
		SetHeader("Content-Type", contentType).Body([]byte(r.body)).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }()
	if strings.Contains(r.path, "watch") {
		return nil, nil
	}
	return io.ReadAll(answer)
}

func checkRequests(t *testing.T, u user) {
	t.Helper()
	for name, r := range requests {
		_, err := u.send(t.Context(), usersNamespace, r.request)
		assert.True(t, isAnswer(err, u.rank() >= r.least), "%s: %v", name, err)
		_, err = u.send(t.Context(), otherNamespace, r.request)
		assert.True(t, isAnswer(err, false), "%s in another namespace: %v", name, err)
	}
}

func isAnswer(err error, allowed bool) bool {
	if allowed {
		// An update requires a resourceVersion, which is checked after the permission.
		return err == nil || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "metadata.resourceVersion")
	}
	return apierrors.IsForbidden(err)
}

// review is an access review by which Drover checks a user before it serves a stream.
type review struct {
	least       rank
	verb        string
	subresource string
}

// reviews returns Drover's access reviews, and others that must be denied.
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

// checkReviews makes these access reviews with the rights of Drover's controller.
func checkReviews(t *testing.T, controller kubernetes.Interface, u user) {
	t.Helper()
	for _, r := range reviews() {
		got, want := u.mayStream(t, controller, usersNamespace, r), u.rank() >= r.least
		assert.True(t, got == want, "%s %s: allowed: %v, want %v", r.verb, r.subresource, got, want)
		assert.True(t, !u.mayStream(t, controller, otherNamespace, r), "%s %s is allowed in another namespace", r.verb, r.subresource)
	}
}

func (u user) mayStream(t testing.TB, controller kubernetes.Interface, ns string, r review) bool {
	t.Helper()
	return isAllowed(t, controller, u.info, authorizationv1.ResourceAttributes{
		Namespace: ns, Name: "vm", Verb: r.verb,
		Group: api.SchemeGroupVersion.Group, Resource: "virtualmachines", Subresource: r.subresource,
	})
}

// checkControllerFields checks that an editor who patches the object cannot change its status,
// and can remove the finalizer, as Kubernetes allows to all who may patch an object.
func checkControllerFields(t *testing.T, u user) {
	t.Helper()
	patch := `{"metadata":{"finalizers":null},"status":{"binding":{"driver":"docker","engineID":"mine"}}}`
	answer, err := u.send(t.Context(), usersNamespace, request{http.MethodPatch, "/vm" + dryRun, patch})
	assert.NoError(t, err)
	var vm api.VirtualMachine
	assert.NoError(t, json.Unmarshal(answer, &vm))
	assert.True(t, vm.Name == "vm" && vm.Status.Binding == nil && len(vm.Finalizers) == 0, "the VM is %+v, want neither a binding nor finalizers", vm)
}
