// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// queries has the query parameters of each stream.
var queries = map[streams.Stream]string{
	streams.Console: "", streams.Exec: "command=cat&stdin=true&stdout=true", streams.PortForward: "port=7",
	streams.Log: "", streams.Interfaces: "", streams.Decisions: "",
}

// The streams that need the verb get, and those that need create.
var (
	readStreams  = []streams.Stream{streams.Log, streams.Interfaces, streams.Decisions}
	writeStreams = []streams.Stream{streams.Console, streams.Exec, streams.PortForward}
)

// roles has the streams that each role allows. getters may get all subresources, which must not
// allow the streams that are opened by GET but need the verb create.
var roles = map[string][]streams.Stream{
	"":         nil,
	"view":     readStreams,
	"edit":     slices.Concat(readStreams, writeStreams),
	"admin":    slices.Concat(readStreams, writeStreams),
	"getters":  readStreams,
	"creators": writeStreams,
}

// credentials has functions that create a user of the API server.
var credentials = map[string]func(t *testing.T, s *server, ns, name string) (*rest.Config, rbacv1.Subject){
	"token": func(t *testing.T, s *server, ns, name string) (*rest.Config, rbacv1.Subject) {
		return s.NewAccount(t, ns, name)
	},
	"certificate": func(t *testing.T, s *server, _, name string) (*rest.Config, rbacv1.Subject) {
		return s.NewPerson(t, name)
	},
}

// TestUsers checks which streams users may open: with each role and without a role, with tokens
// and with certificates, through both servers.
func TestUsers(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, other := s.createVM(t), s.createVM(t)
			s.createRoles(t)
			for role, allowed := range roles {
				for kind, create := range credentials {
					t.Run(fmt.Sprintf("%q by %s", role, kind), func(t *testing.T) {
						user, subject := create(t, s, namespace, cmp.Or(role, "none")+"-by-"+kind)
						if role != "" {
							s.Bind(t, namespace, role, subject)
						}
						checkStreams(t, s, user, namespace, other, allowed)
					})
				}
			}
		})
	}
}

// checkStreams tries each stream, in the user's namespace and in another one.
func checkStreams(t *testing.T, s *server, user *rest.Config, namespace, other string, allowed []streams.Stream) {
	t.Helper()
	for stream := range queries {
		want := http.StatusForbidden
		switch {
		case !slices.Contains(allowed, stream):
		case slices.Contains(writeStreams, stream):
			want = http.StatusSwitchingProtocols
		default:
			want = http.StatusOK
		}
		assert.Eventually(t, fmt.Sprintf("%s answers %d", stream, want), func(t testing.TB) error { // a new role takes effect after a moment
			got, text := s.open(t, user, namespace, stream)
			return assert.ErrorUnless(got == want, "the answer is %d: %s", got, text)
		})
		for _, name := range []string{"vm", "none"} { // the answer does not show whether the VM exists
			got, text := s.openNamed(t, user, other, name, stream)
			says := name + `\" is forbidden`
			assert.True(t, got == http.StatusForbidden && strings.Contains(text, says), "%s of %s in another namespace is answered %d: %s", stream, name, got, text)
		}
	}
}

// TestImpersonation checks that impersonation works where kube-apiserver authorizes it, and is
// refused, not ignored, by the controller's address.
func TestImpersonation(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"drover up": http.StatusForbidden, "controller": http.StatusBadRequest} {
		s := servers()[name]
		namespace := s.createVM(t)
		admin := rest.CopyConfig(s.Config)
		code, text := s.open(t, admin, namespace, streams.Log)
		assert.True(t, code == http.StatusOK, "%s: an administrator is answered %d: %s", name, code, text)
		admin.Impersonate.UserName = "somebody"
		code, text = s.open(t, admin, namespace, streams.Log)
		assert.True(t, code == want, "%s: an administrator as another user is answered %d: %s", name, code, text)
	}
}

// TestAddress checks that every user may read the ConfigMap with the address of streams, but no others.
func TestAddress(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		if s == endpoint {
			continue // test/manifests tests its roles, which are in config/rbac
		}
		user, _ := s.NewAccount(t, s.CreateNamespace(t), "reader")
		config, err := clientOf(t, user).CoreV1().ConfigMaps(streams.ConfigMapNamespace).Get(t.Context(), streams.ConfigMapName, metav1.GetOptions{})
		assert.Require(t, err == nil, "%s: %v", name, err)
		address, ok := config.Data[streams.AddressKey]
		assert.True(t, ok && address == "", "%s: the address is %q", name, address)
		_, err = clientOf(t, user).CoreV1().ConfigMaps(streams.ConfigMapNamespace).List(t.Context(), metav1.ListOptions{})
		assert.True(t, err != nil, "%s: the user may list all", name)
	}
}

// open opens a stream of VirtualMachine vm, and returns the answer.
func (s *server) open(t testing.TB, user *rest.Config, namespace string, stream streams.Stream) (code int, text string) {
	t.Helper()
	return s.openNamed(t, user, namespace, "vm", stream)
}

func (s *server) openNamed(t testing.TB, user *rest.Config, namespace, name string, stream streams.Stream) (code int, text string) {
	t.Helper()
	user = s.configOf(user)
	path := streams.Path(namespace, name, stream) + "?" + queries[stream]
	if slices.Contains(writeStreams, stream) {
		ws, response, err := s.dial(t, user, path) //nolint:bodyclose // bodyOf closes it
		if err == nil {
			_ = ws.Close()
		} else if response == nil {
			t.Fatal(err)
		}
		return response.StatusCode, bodyOf(response)
	}
	response := s.get(t, user, path) //nolint:bodyclose // bodyOf closes it
	return response.StatusCode, bodyOf(response)
}

func bodyOf(response *http.Response) string {
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	return string(text)
}

// dial opens a WebSocket.
func (s *server) dial(t testing.TB, user *rest.Config, path string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	tlsConfig, err := rest.TLSConfigFor(user)
	assert.NoError(t, err)
	header := http.Header{}
	if user.BearerToken != "" {
		header.Set("Authorization", "Bearer "+user.BearerToken)
	}
	if user.Impersonate.UserName != "" {
		header.Set("Impersonate-User", user.Impersonate.UserName)
	}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{streams.Protocol}}
	return dialer.DialContext(t.Context(), strings.Replace(user.Host, "https", "wss", 1)+path, header)
}

// mustDial opens a WebSocket of VirtualMachine vm, as the administrator.
func (s *server) mustDial(t *testing.T, namespace string, stream streams.Stream) *websocket.Conn {
	t.Helper()
	ws, response, err := s.dial(t, s.configOf(s.Config), streams.Path(namespace, "vm", stream)+"?"+queries[stream])
	assert.Require(t, err == nil, "%s is not opened: %v", stream, err)
	_ = response.Body.Close()
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// get sends a plain request.
func (s *server) get(t testing.TB, user *rest.Config, path string) *http.Response {
	t.Helper()
	client, err := rest.HTTPClientFor(user)
	assert.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, user.Host+path, http.NoBody)
	assert.NoError(t, err)
	response, err := client.Do(request)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// createRoles creates the roles that Kubernetes does not have.
func (s *server) createRoles(t *testing.T) {
	t.Helper()
	resources := []string{"virtualmachines"}
	for stream := range queries {
		resources = append(resources, "virtualmachines/"+string(stream))
	}
	for name, verb := range map[string]string{"getters": "get", "creators": "create"} {
		s.CreateRole(t, name, rbacv1.PolicyRule{APIGroups: []string{"cloudnative.tw"}, Resources: resources, Verbs: []string{verb}})
	}
}
