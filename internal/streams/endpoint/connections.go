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

// connections counts the open connections, so that the controller keeps descriptors for its
// work. Connections of users have separate places, which strangers do not take.
type connections struct {
	maxStrangers, maxUsers, maxPerUser int

	mu sync.Mutex
	// strangers are the connections whose client is not known yet, the oldest first.
	strangers []*connection
	// users has the number of connections of each user, and used their sum.
	users map[string]int
	used  int
}

// newConnections allows a user a quarter of the users' places, and all streams of one
// VirtualMachine.
func newConnections(streams, streamsPerVM int) *connections {
	places := streams + spareConnections
	return &connections{
		maxStrangers: maxStrangers, maxUsers: places, maxPerUser: max(streamsPerVM, places/4), users: map[string]int{},
	}
}

// connection is one that a client has opened.
type connection struct {
	net.Conn
	all     *connections
	network netip.Prefix
	// user has the place, once isAdmitted is set. The mutex of all guards both.
	user       string
	isAdmitted bool
}

// add takes a new connection. If there are too many of strangers, one of them is closed.
func (a *connections) add(conn net.Conn) *connection {
	added := &connection{Conn: conn, all: a, network: networkOf(conn.RemoteAddr().String())}
	a.mu.Lock()
	a.strangers = append(a.strangers, added)
	var excess *connection
	if len(a.strangers) > a.maxStrangers {
		excess = excessOf(a.strangers)
	}
	a.mu.Unlock()
	if excess != nil {
		_ = excess.Close()
	}
	return added
}

// excessOf returns the oldest connection of the network that has the most. A single address is
// not limited further, since it may belong to a proxy, which all users share.
func excessOf(strangers []*connection) *connection {
	counts := map[netip.Prefix]int{}
	most := 0
	for _, one := range strangers {
		counts[one.network]++
		most = max(most, counts[one.network])
	}
	return strangers[slices.IndexFunc(strangers, func(stranger *connection) bool { return counts[stranger.network] == most })]
}

// admitUser gives a connection of a stranger one of the users' places.
func (c *connection) admitUser(user string) error {
	a := c.all
	a.mu.Lock()
	defer a.mu.Unlock()
	n := slices.Index(a.strangers, c)
	switch {
	case n < 0:
		return net.ErrClosed
	case a.used >= a.maxUsers:
		return apierrors.NewTooManyRequests(fmt.Sprintf("the address of streams has %d connections of users, the most that --streams-max of the controller allows", a.maxUsers), retryAfter)
	case a.users[user] >= a.maxPerUser:
		return apierrors.NewTooManyRequests(fmt.Sprintf("this user has %d connections to the address of streams, the most that --streams-max of the controller allows one user", a.maxPerUser), retryAfter)
	}
	a.strangers = slices.Delete(a.strangers, n, n+1)
	a.users[user]++
	a.used++
	c.user, c.isAdmitted = user, true
	return nil
}

// Close implements net.Conn. It gives the connection's place back.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.all.remove(c)
	return err
}

func (a *connections) remove(c *connection) {
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

// listener is one whose connections are counted.
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
	return l.connections.add(conn), nil
}

type connectionKey struct{}

// withConnection is a http.Server's ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}
