// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// connections limits the open connections, so that the controller keeps file descriptors for its
// work. Connections of users have separate places, which unauthenticated clients cannot take.
type connections struct {
	maxStrangers, maxUsers, maxPerUser int

	mu sync.Mutex
	// strangers are the connections whose client is not authenticated yet, the oldest first.
	strangers []*connection
	// users has the number of connections of each user, and used is the sum of these numbers.
	users map[string]int
	used  int
}

// newConnections allows one user a quarter of the users' places, but at least as many as one
// VirtualMachine may have streams.
func newConnections(streams, streamsPerVM int) *connections {
	places := streams + spareConnections
	return &connections{
		maxStrangers: maxStrangers, maxUsers: places, maxPerUser: max(streamsPerVM, places/4), users: map[string]int{},
	}
}

// connection is a connection that a client has opened.
type connection struct {
	net.Conn
	all     *connections
	network netip.Prefix
	// user is the user whose place the connection has, if isAdmitted is set. all.mu guards both.
	user       string
	isAdmitted bool
}

// addStranger counts a new connection. If strangers have too many connections, it closes one of them.
func (a *connections) addStranger(conn net.Conn) *connection {
	added := &connection{Conn: conn, all: a, network: networkOf(conn.RemoteAddr().String())}
	a.mu.Lock()
	a.strangers = append(a.strangers, added)
	var excess *connection
	if len(a.strangers) > a.maxStrangers {
		excess = chooseExcess(a.strangers)
	}
	a.mu.Unlock()
	if excess != nil {
		_ = excess.Close()
	}
	return added
}

// chooseExcess returns the oldest connection of the network with the most connections. A single address
// is not limited, since it may belong to a proxy that all users share.
func chooseExcess(strangers []*connection) *connection {
	counts := map[netip.Prefix]int{}
	most := 0
	for _, stranger := range strangers {
		counts[stranger.network]++
		most = max(most, counts[stranger.network])
	}
	return strangers[slices.IndexFunc(strangers, func(stranger *connection) bool { return counts[stranger.network] == most })]
}

// admitUser moves the connection of a stranger, who is now known as user, to one of the users' places.
func (c *connection) admitUser(user string) error {
	a := c.all
	a.mu.Lock()
	defer a.mu.Unlock()
	n := slices.Index(a.strangers, c)
	switch {
	case n < 0:
		return net.ErrClosed
	case a.used >= a.maxUsers:
		return apierrors.NewTooManyRequests(fmt.Sprintf("the streams endpoint has %d connections of users, the most that --streams-max of the controller allows", a.maxUsers), retryAfter)
	case a.users[user] >= a.maxPerUser:
		return apierrors.NewTooManyRequests(fmt.Sprintf("this user has %d connections to the streams endpoint, the most that --streams-max of the controller allows one user", a.maxPerUser), retryAfter)
	}
	a.strangers = slices.Delete(a.strangers, n, n+1)
	a.users[user]++
	a.used++
	c.user, c.isAdmitted = user, true
	return nil
}

// Close implements net.Conn. It frees the connection's place.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.all.removeConnection(c)
	return err
}

func (a *connections) removeConnection(c *connection) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := slices.Index(a.strangers, c); n >= 0 {
		a.strangers = slices.Delete(a.strangers, n, n+1)
	}
	if !c.isAdmitted {
		return
	}
	c.isAdmitted = false
	a.used--
	if a.users[c.user]--; a.users[c.user] == 0 {
		delete(a.users, c.user)
	}
}

// listener is a listener whose connections are counted.
type listener struct {
	net.Listener
	connections *connections
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.connections.addStranger(conn), nil
}

type connectionKey struct{}

// withConnection is the ConnContext of a http.Server. It stores the connection in the context.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}
