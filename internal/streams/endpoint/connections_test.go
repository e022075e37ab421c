// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/test/assert"
)

// crowd is an endpoint, and those who connect to it.
type crowd struct {
	t   *testing.T
	all *connections
	url string
}

// newCrowd serves streams that go on until their client leaves, to users whose token is their name.
func newCrowd(t *testing.T, all *connections) *crowd {
	t.Helper()
	all.users = map[string]int{}
	users := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, ok, nil
	})
	stream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	c := &clients{Request: users, certificates: strangers, gate: newGate(clock.RealClock{}), ca: &clientCA{}, next: stream, log: logr.Discard()}
	server := httptest.NewUnstartedServer(nil)
	server.Listener, server.Config = listener{server.Listener, all}, newServer(c, logr.Discard())
	server.StartTLS()
	t.Cleanup(server.Close)
	return &crowd{t, all, server.Listener.Addr().String()}
}

// connect opens a connection from an address of the loopback network.
func (c *crowd) connect(source string) net.Conn {
	c.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.DialContext(c.t.Context(), "tcp", c.url)
	assert.NoError(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// request sends a request and returns the status of the answer.
func (c *crowd) request(conn net.Conn, header string) (*tls.Conn, int) {
	c.t.Helper()
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is about connections
	c.t.Cleanup(func() { _ = secured.Close() })
	_, err := fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: x\r\n%s\r\n", header)
	assert.NoError(c.t, err)
	response, err := http.ReadResponse(bufio.NewReader(secured), nil) //nolint:bodyclose // it goes on while the stream does
	assert.NoError(c.t, err)
	return secured, response.StatusCode
}

// open opens a stream of a user.
func (c *crowd) open(user string) (conn *tls.Conn, status int) {
	c.t.Helper()
	return c.request(c.connect("127.0.0.1"), "Authorization: Bearer "+user+"\r\n")
}

// waitForStrangers waits until the endpoint has so many connections of strangers.
func (c *crowd) waitForStrangers(want int) {
	c.t.Helper()
	assert.Eventually(c.t, fmt.Sprintf("%d connections of strangers", want), func(testing.TB) error {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		n := len(c.all.strangers)
		return assert.ErrorUnless(n == want, "there are %d", n)
	})
}

// waitForEnd waits until the server has closed a connection.
func (c *crowd) waitForEnd(name string, conn net.Conn) {
	c.t.Helper()
	assert.Eventually(c.t, name+" has ended", func(testing.TB) error {
		return assert.ErrorUnless(!isOpen(conn), "it is open")
	})
}

// isOpen reports whether the other end of a connection has neither sent nor closed anything.
func isOpen(conn net.Conn) bool {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		_, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return errors.Is(err, unix.EAGAIN)
}

// TestConnectionsOfStrangers checks that clients who only connect, and stay, take neither the places
// of users nor the way to them, although they share an address with the users.
func TestConnectionsOfStrangers(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, &connections{maxStrangers: 4, maxUsers: 4, maxPerUser: 4})
	var silent []net.Conn
	flood := func() {
		for range 3 * c.all.maxStrangers {
			silent = append(silent, c.connect("127.0.0.1"))
		}
	}
	flood()
	before, status := c.open("ann")
	assert.Require(t, status == http.StatusOK, "a user among strangers is answered %d", status)
	flood()
	c.waitForEnd("the oldest connection of a stranger", silent[0])
	c.waitForStrangers(c.all.maxStrangers)
	_, status = c.open("ann")
	assert.True(t, status == http.StatusOK, "a user among strangers is answered %d", status)
	assert.True(t, isOpen(before), "a user's stream has ended")
}

// TestConnectionsByAddress checks that the connections of an address that has the most of them make
// room, and that a single address is not limited.
func TestConnectionsByAddress(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, &connections{maxStrangers: 4, maxUsers: 4, maxPerUser: 4})
	other := c.connect("127.0.0.2")
	c.waitForStrangers(1)
	var flood []net.Conn
	for range 3 * c.all.maxStrangers {
		flood = append(flood, c.connect("127.0.0.1"))
	}
	c.waitForEnd("a connection of many", flood[0])
	last := len(flood) - c.all.maxStrangers
	c.waitForEnd("the last one that is too many", flood[last])
	assert.True(t, isOpen(other), "the only connection of an address was closed for those of another")
	for _, conn := range flood[last+1:] {
		assert.True(t, isOpen(conn), "more were closed than are too many")
	}
}

// TestRefusedConnection checks that a refusal ends the connection.
func TestRefusedConnection(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, &connections{maxStrangers: 4, maxUsers: 4, maxPerUser: 4})
	_, status := c.request(c.connect("127.0.0.1"), "")
	assert.True(t, status == http.StatusUnauthorized, "a stranger is answered %d", status)
	c.waitForStrangers(0)
}

// TestConnectionsOfUsers checks that one user does not take the places of others, that these have an
// end, and that who leaves gives a place back.
func TestConnectionsOfUsers(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, &connections{maxStrangers: 4, maxUsers: 3, maxPerUser: 2})
	open := func(user string, want int) *tls.Conn {
		t.Helper()
		conn, status := c.open(user)
		assert.Equal(t, user+" is answered", status, want)
		return conn
	}
	first := open("ann", http.StatusOK)
	open("ann", http.StatusOK)
	open("ann", http.StatusTooManyRequests)
	open("bob", http.StatusOK)
	open("eve", http.StatusTooManyRequests)
	_ = first.Close()
	assert.Eventually(t, "there is a place", func(testing.TB) error {
		_, status := c.open("eve")
		return assert.ErrorUnless(status == http.StatusOK, "the answer is %d", status)
	})
}

// TestConnectionsAtDefault checks that a user may have all streams of a VirtualMachine, and a quarter
// of all places of users.
func TestConnectionsAtDefault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ streams, perVM, total, perUser int }{{1000, 128, 1256, 314}, {100, 100, 356, 100}} {
		c := newConnections(tc.streams, tc.perVM)
		assert.True(t, c.maxUsers == tc.total && c.maxPerUser == tc.perUser, "%+v: %d connections, %d of a user", tc, c.maxUsers, c.maxPerUser)
	}
}
