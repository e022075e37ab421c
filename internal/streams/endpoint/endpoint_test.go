// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// strangers knows no client.
var strangers = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, false, nil })

// TestBody checks that a request which announces a body does not hold its connection.
func TestBody(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&clients{Request: strangers, certificates: strangers, gate: newGate(clock.RealClock{}), log: logr.Discard()})
	t.Cleanup(server.Close)
	for _, header := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://")) //nolint:noctx // a test of one connection
		assert.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", header)
		all, err := io.ReadAll(bufio.NewReader(conn)) // until the server closes
		assert.True(t, err == nil && strings.HasPrefix(string(all), "HTTP/1.1 400 ") && strings.Contains(string(all), "the request has a body"),
			"%s is answered %q, %v", header, all, err)
	}
}

// reviewer stands for the API server: it takes its time, and knows the tokens of users.
type reviewer struct {
	mu                sync.Mutex
	asked, open, most int
}

func (a *reviewer) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	a.mu.Lock()
	a.asked++
	a.open++
	a.most = max(a.most, a.open)
	a.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	a.mu.Lock()
	a.open--
	a.mu.Unlock()
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer user-")
	return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, ok, nil
}

// reviews returns how many tokens were reviewed, and how many at a time.
func (a *reviewer) reviews() (count, most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked, a.most
}

// TestGate checks that clients without valid credentials have the API server review few tokens at a
// time, and keep out no user, although all come from the address of one proxy. A token
// that was valid before waits for none of theirs.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &reviewer{}
		c := &clients{certificates: strangers, gate: newGate(clock.RealClock{}), log: logr.Discard(), Request: a}
		ask := func(token string) error {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			_, err := c.identifyUser(r)
			return err
		}
		flood := func(meanwhile func()) (most int) {
			a.most = 0 // none is under way
			var all sync.WaitGroup
			for n := range 200 {
				all.Go(func() {
					err := ask(fmt.Sprintf("wrong-%d", n))
					assert.True(t, apierrors.IsUnauthorized(err), "a stranger is answered %v", err)
				})
			}
			synctest.Wait()
			meanwhile()
			all.Wait()
			_, most = a.reviews()
			return most
		}
		for range 3 * failureBurst {
			err := ask("")
			asked, _ := a.reviews()
			assert.Require(t, apierrors.IsUnauthorized(err) && asked == 0, "without a token the answer is %v, and the API server was asked %d times", err, asked)
		}
		assert.NoError(t, ask("user-ann"))
		if most := flood(func() {}); most != maxReviews {
			t.Errorf("the API server was asked about %d tokens at a time, want %d", most, maxReviews)
		}
		most := flood(func() {
			before, _ := a.reviews()
			assert.NoError(t, ask("user-ann"))
			after, _ := a.reviews()
			assert.True(t, after-before <= 3, "a known user has waited for %d others", after-before-1)
			assert.NoError(t, ask("user-bob"))
		})
		if most > 3 { // two of them those of users
			t.Errorf("after all these failures %d tokens are reviewed at a time, want one", most)
		}
		assert.Equal(t, "places are taken", len(c.gate.places), 0)
	})
}

// TestUnanswered checks that clients may come again which the API server has not answered about,
// for whatever reason, and that only what it says of a token counts as a client's failure.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	var answer atomic.Pointer[http.HandlerFunc]
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) }))
	t.Cleanup(api.Close)
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	o := Options{Config: &rest.Config{Host: api.URL, QPS: -1}, HTTPClient: api.Client(), Clock: clock.RealClock{}, Log: logr.Discard(), Handler: served}
	c, err := newClients(o, &clientCA{Options: o})
	assert.NoError(t, err)
	port := 0
	ask := func(ctx context.Context) *http.Response {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		port++
		r.Header.Set("Authorization", fmt.Sprintf("Bearer token-%d", port))
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w.Result()
	}
	review := func(status string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":%s}`, status)
		}
	}
	respond := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, outage := range map[string]http.HandlerFunc{
		"broken off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"forbidden":  respond(http.StatusForbidden), "503": respond(http.StatusServiceUnavailable),
	} {
		answer.Store(&outage)
		for range failureBurst + 1 {
			response := ask(t.Context()) //nolint:bodyclose // a recorder's
			assert.Require(t, response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "",
				"%s: the answer is %s, Retry-After %q", name, response.Status, response.Header.Get("Retry-After"))
		}
	}
	good, bad := review(`{"authenticated":true,"user":{"username":"ann"}}`), review(`{"error":"invalid bearer token"}`)
	answer.Store(&good)
	left, leave := context.WithCancel(t.Context())
	leave()
	for range failureBurst + 1 {
		_ = ask(left) //nolint:bodyclose // a recorder's
	}
	if response := ask(t.Context()); response.StatusCode != http.StatusNoContent { //nolint:bodyclose // a recorder's
		t.Errorf("a user is answered %s", response.Status)
	}
	answer.Store(&bad)
	for range 2 * failureBurst {
		if response := ask(t.Context()); response.StatusCode != http.StatusUnauthorized { //nolint:bodyclose // a recorder's
			t.Errorf("a stranger is answered %s", response.Status)
		}
	}
	answer.Store(&good)
	if response := ask(t.Context()); response.StatusCode != http.StatusNoContent { //nolint:bodyclose // a recorder's
		t.Errorf("a user at the address of strangers is answered %s", response.Status)
	}
}

// TestFullGate checks that a client whose turn has not come leaves when its connection ends.
func TestFullGate(t *testing.T) {
	t.Parallel()
	g := newGate(clock.RealClock{})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	var leave func(bool, bool)
	for range maxReviews {
		var err error
		leave, err = g.admitRequest(r)
		assert.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, "a client that left", assert.ErrorOf(g.admitRequest(r.WithContext(ctx))), context.Canceled)
	leave(false, false)
	assert.ErrorIs(t, "there is a place, and the answer", assert.ErrorOf(g.admitRequest(r)), nil)
}

// TestConnectionsInheritTimeouts checks what ends a connection whose client is gone.
func TestConnectionsInheritTimeouts(t *testing.T) {
	t.Parallel()
	l, err := listenConfig().Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	conn, err := l.Accept()
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	raw, err := conn.(*net.TCPConn).SyscallConn()
	assert.NoError(t, err)
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 60_000, unix.TCP_KEEPIDLE: 15, unix.TCP_KEEPINTVL: 15, unix.TCP_KEEPCNT: 4} {
		var got int
		controlErr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
		if err := errors.Join(controlErr, err); err != nil || got != want {
			t.Errorf("option %d is %d, %v, want %d", option, got, err, want)
		}
	}
}

// TestCertificateOfToday checks that a client's certificate counts as long as the cluster's CA
// is the same, even after the CA has expired, and no longer.
func TestCertificateOfToday(t *testing.T) {
	t.Parallel()
	began := time.Now()
	ca, own := newCAWithUser(t, began.Add(time.Minute))
	authority := &clientCA{}
	c := &clients{ca: authority}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.TLS = &tls.ConnectionState{PeerCertificates: own}
	check := func(what string, at time.Time, want bool) {
		t.Helper()
		assert.Equal(t, what+": it counts", c.hasCertificate(r, at), want)
	}
	check("no CA", began, false)
	publish(t, authority, ca)
	check("valid", began, true)
	check("expired at the begin", began.Add(time.Hour), false)
	other, _ := newCAWithUser(t, began)
	publish(t, authority, other)
	check("another CA", began, false)
	publish(t, authority, ca)
	check("the first again", began, true)
	authority.current.Store(nil)
	check("withdrawn", began, false)
}

// TestCertificateAtFullGate checks that users with a certificate do not depend on others of the
// same address, who may be anyone where a load balancer hides the addresses of clients.
func TestCertificateAtFullGate(t *testing.T) {
	t.Parallel()
	ca, own := newCAWithUser(t, time.Now().Add(time.Hour))
	authority := &clientCA{}
	publish(t, authority, ca)
	o := Options{Config: &rest.Config{Host: "127.0.0.1:0"}, HTTPClient: http.DefaultClient, Clock: clock.RealClock{}, Log: logr.Discard()}
	c, err := newClients(o, authority)
	assert.NoError(t, err)
	for range maxReviews {
		c.gate.places <- struct{}{}
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	r := httptest.NewRequestWithContext(left, http.MethodGet, "/", http.NoBody)
	r.Header.Set("Authorization", "Bearer token")
	assert.ErrorIs(t, "a client with a token", assert.ErrorOf(c.identifyUser(r)), context.Canceled)
	r.TLS = &tls.ConnectionState{PeerCertificates: own}
	who, err := c.identifyUser(r)
	assert.True(t, err == nil && who.GetName() == "ann" && slices.Contains(who.GetGroups(), user.AllAuthenticated), "a user with a certificate is %v, %v", who, err)
}

// newCAWithUser returns a CA, and a certificate of a user by it.
func newCAWithUser(t *testing.T, until time.Time) (ca *x509.Certificate, certificates []*x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	ca, err = certutil.NewSelfSignedCACert(certutil.Config{CommonName: "ca"}, key)
	assert.NoError(t, err)
	text, _ := framework.SignCertificate(t, "ann", until, ca, key)
	certificates, err = certutil.ParseCertsPEM(text)
	assert.NoError(t, err)
	return ca, certificates
}

// publish makes a CA that of the cluster.
func publish(t *testing.T, authority *clientCA, ca *x509.Certificate) {
	t.Helper()
	static, err := dynamiccertificates.NewStaticCAContent("ca", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}))
	assert.NoError(t, err)
	authority.current.Store(&content{CAContentProvider: static})
}
