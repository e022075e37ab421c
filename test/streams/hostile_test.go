// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestStrangers checks that all clients without valid credentials get the same answer from
// both servers.
func TestStrangers(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		namespace := s.createVM(t)
		none := rest.AnonymousClientConfig(s.Config)
		garbage := rest.CopyConfig(none)
		garbage.BearerToken = "no.token.atall"
		password := rest.CopyConfig(none)
		password.Username, password.Password = "admin", "admin"
		selfMade := rest.CopyConfig(none)
		selfMade.CertData, selfMade.KeyData = framework.SignCertificate(t, "drover-admin", time.Now().Add(time.Hour), nil, nil)
		expired := s.SignUser(t, "drover-admin", time.Now().Add(-time.Minute))
		for who, user := range map[string]*rest.Config{"none": none, "garbage": garbage, "password": password, "self-made": selfMade, "expired": expired} {
			code, text := s.open(t, user, namespace, streams.Log)
			var status metav1.Status
			if err := json.Unmarshal([]byte(text), &status); code != http.StatusUnauthorized || err != nil || status.Reason != metav1.StatusReasonUnauthorized {
				t.Errorf("%s: %s is answered %d: %s", name, who, code, text)
			}
			assert.True(t, s != endpoint || who != "expired" || strings.Contains(status.Message, "has expired"), "%s: %s is answered %q", name, who, status.Message)
		}
	}
}

// TestProxyHeaders checks that the identity headers of a front proxy are ignored.
func TestProxyHeaders(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		user := s.configOf(rest.AnonymousClientConfig(s.Config))
		user.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("X-Remote-User", "drover-admin")
				r.Header.Set("X-Remote-Group", "system:masters")
				return next.RoundTrip(r)
			})
		}
		response := s.get(t, user, streams.Path("default", "vm", streams.Log)) //nolint:bodyclose // it is closed
		assert.Equal(t, name+" answers", response.StatusCode, http.StatusUnauthorized)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestFlood checks that a client that tries many tokens does not lock out users, not even those at the
// same address, which may be a proxy's.
func TestFlood(t *testing.T) {
	t.Parallel()
	s := endpoint
	// A separate address, since other tests send wrong tokens from 127.0.0.1.
	dial := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).DialContext
	flooder, user := rest.AnonymousClientConfig(s.Config), rest.CopyConfig(s.Config)
	flooder.Dial, user.Dial = dial, dial
	for i := range 100 {
		flooder.BearerToken = fmt.Sprintf("no.token.%d", i)
		response := s.get(t, s.configOf(flooder), streams.Path("default", "vm", streams.Log)) //nolint:bodyclose // it is closed
		assert.Require(t, response.StatusCode == http.StatusUnauthorized, "a wrong token is answered %d", response.StatusCode)
	}
	code, text := s.open(t, user, s.createVM(t), streams.Log)
	assert.True(t, code == http.StatusOK, "a user is answered %d: %s", code, text)
}

// TestTransport checks the protocols at the controller's address: TLS from 1.2 on, and
// HTTP/1.1.
func TestTransport(t *testing.T) {
	t.Parallel()
	address := strings.TrimPrefix(endpoint.url, "https://")
	dial := func(change func(*tls.Config)) (net.Conn, error) {
		d := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test is about the versions
		change(d.Config)
		return d.DialContext(t.Context(), "tcp", address)
	}
	old, err := dial(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
	if err == nil {
		_ = old.Close()
		t.Error("TLS 1.1 is accepted")
	}
	both, err := dial(func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} })
	assert.NoError(t, err)
	defer func() { _ = both.Close() }()
	assert.Equal(t, "the protocol chosen from HTTP/2 and 1.1", both.(*tls.Conn).ConnectionState().NegotiatedProtocol, "http/1.1")
	plain, err := getFrom(t, http.DefaultClient, "http://"+address+streams.Path("default", "vm", streams.Log))
	if err == nil {
		_ = plain.Body.Close()
		assert.Equal(t, "HTTP is answered", plain.StatusCode, http.StatusBadRequest)
	}
}

func getFrom(t testing.TB, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

// TestNewCertificate checks that the address uses a new certificate soon after the files have
// changed, and that the controller publishes the CA at its next start.
func TestNewCertificate(t *testing.T) { // not parallel: it restarts the controller
	s := endpoint
	namespace := s.createVM(t)
	ca, err := framework.WriteServerCertificate(filepath.Join(s.DataDir, "streams"))
	assert.NoError(t, err)
	s.ca = ca
	assert.Eventually(t, "the new certificate is used", func(t testing.TB) error {
		client, err := rest.HTTPClientFor(s.configOf(s.Config))
		if err != nil {
			return err
		}
		defer client.CloseIdleConnections()
		response, err := getFrom(t, client, s.url+streams.Path(namespace, "vm", streams.Log))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	})
	maps := s.KubeClient.CoreV1().ConfigMaps(streams.ConfigMapNamespace)
	assert.NoError(t, maps.Delete(t.Context(), streams.ConfigMapName, metav1.DeleteOptions{}))
	assert.NoError(t, s.restart())
	assert.Eventually(t, "the new certificate is published", func(t testing.TB) error {
		published, err := maps.Get(t.Context(), streams.ConfigMapName, metav1.GetOptions{})
		if err == nil && (published.Data[streams.AddressKey] != s.url || published.Data[streams.CAKey] != string(ca)) {
			err = fmt.Errorf("the data is %v", published.Data)
		}
		return err
	})
}

func clientOf(t *testing.T, user *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(user)
	assert.NoError(t, err)
	return client
}

// TestPaths checks that kube-apiserver forwards strange paths unchanged, and that none of them
// reaches another handler.
func TestPaths(t *testing.T) {
	t.Parallel()
	for name, s := range servers() {
		for path, want := range map[string]int{
			streams.PathPrefix + "/": http.StatusNotFound,
			streams.PathPrefix + "/namespaces/default/virtualmachines/..%2f..%2f..%2f..%2fhealthz/log": http.StatusNotFound,
			streams.PathPrefix + "/namespaces/default/virtualmachines/%2e%2e/log":                      http.StatusBadRequest,
			streams.PathPrefix + "/namespaces/%00/virtualmachines/vm/log":                              http.StatusBadRequest,
			streams.PathPrefix + "/namespaces/default/pods/vm/log":                                     http.StatusNotFound,
		} {
			if response := s.get(t, s.configOf(s.Config), path); response.StatusCode != want { //nolint:bodyclose // it is closed
				t.Errorf("%s: %s is answered %d", name, path, response.StatusCode)
			}
		}
	}
}

// TestNoStreams checks that `drover up` without a controller serves no streams.
func TestNoStreams(t *testing.T) {
	t.Parallel()
	response := endpoint.get(t, endpoint.Config, streams.Path("default", "vm", streams.Log)) //nolint:bodyclose // it is closed
	assert.Equal(t, "the status code", response.StatusCode, http.StatusNotFound)
}

// TestDroppedSessions opens and drops sessions through each server, and checks that they leave
// no goroutines and descriptors in its process.
func TestDroppedSessions(t *testing.T) { // not parallel: it counts
	sessions := 200
	if tier.IsFull() {
		sessions = 1000
	}
	for name, s := range servers() {
		t.Run(name, func(t *testing.T) {
			namespace := s.createVM(t)
			s.dropSessions(t, namespace, 50) // the first sessions open what the process keeps
			var before counts
			assert.Eventually(t, "the process is quiet", func(t testing.TB) error {
				last := before
				before = s.count(t)
				return assert.ErrorUnless(before == last, "the counts are %+v after %+v", before, last)
			})
			s.dropSessions(t, namespace, sessions)
			assert.Eventually(t, "nothing is left", func(t testing.TB) error {
				now := s.count(t)
				// Some goroutines come and go, but not one for each session.
				return assert.ErrorUnless(now.goroutines <= before.goroutines+20 && now.descriptors <= before.descriptors+5, "the counts are %+v, and were %+v", now, before)
			})
		})
	}
}

// dropSessions opens sessions and drops them, some with a close message.
func (s *server) dropSessions(t *testing.T, namespace string, count int) {
	t.Helper()
	all := []streams.Stream{streams.Console, streams.Exec, streams.PortForward}
	for i := range count {
		ws := s.mustDial(t, namespace, all[i%len(all)])
		if i%2 == 0 {
			_ = ws.WriteMessage(websocket.BinaryMessage, []byte("\x00hello"))
		}
		if i%4 == 1 {
			_ = ws.WriteControl(websocket.CloseMessage, nil, time.Now().Add(time.Hour))
		}
		_ = ws.Close()
	}
}

// counts are the numbers of goroutines and descriptors of a process.
type counts struct{ goroutines, descriptors int }

func (s *server) count(t testing.TB) counts {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid()))
	assert.NoError(t, err)
	c := counts{descriptors: len(all), goroutines: runtime.NumGoroutine()}
	if s == standalone {
		profile, err := framework.GetFrom(t.Context(), s.pid(), "/debug/pprof/goroutine?debug=1")
		assert.NoError(t, err)
		_, err = fmt.Sscanf(string(profile), "goroutine profile: total %d", &c.goroutines)
		assert.NoError(t, err)
	}
	return c
}
