// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// guardedEdge is the machine's network for clients of the control listener. It accepts connections to the guest only
// while the guest runs.
type guardedEdge struct {
	network  Network
	links    *Links
	progress *progress
	watches  *watches
	log      logr.Logger
}

// DialGuest implements control.Network.
func (e *guardedEdge) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	if err := e.progress.checkRunning(); err != nil {
		return nil, err
	}
	return e.network.DialGuest(ctx, port)
}

// SetWanted implements control.Network.
func (e *guardedEdge) SetWanted(ctx context.Context, w control.Wanted) (served []control.Port, err error) {
	served, err = e.network.SetWanted(ctx, w)
	e.watches.notifyAll()
	return served, err
}

// GiveSockets implements control.Network.
func (e *guardedEdge) GiveSockets(ctx context.Context, revision control.Revision, sockets map[control.Port]*os.File) error {
	err := e.network.GiveSockets(ctx, revision, sockets)
	if err != nil && !errors.Is(err, failure.ErrStale) {
		e.log.Error(err, "Ports cannot be served")
	}
	e.watches.notifyAll()
	return err
}

// Join implements control.Peer.
func (e *guardedEdge) Join(link *control.PeerLink) { e.links.followLink(link) }

// Accept implements control.Peer.
func (e *guardedEdge) Accept(ctx context.Context, c control.PeerConn, socket *os.File) error {
	if err := e.progress.checkRunning(); err != nil {
		return err
	}
	return e.network.Accept(ctx, c, socket)
}

// Links are a machine's links to its switchboard. Calls use the last link that is still open. Several processes may open a
// link at the same time, and the switchboard keeps any one of them.
type Links struct {
	mu  sync.Mutex
	all []*control.PeerLink
}

var _ control.Switchboard = (*Links)(nil)

// followLink adds a link, serves it until it ends, and removes it.
func (l *Links) followLink(link *control.PeerLink) {
	l.mu.Lock()
	l.all = append(l.all, link)
	l.mu.Unlock()
	link.Follow()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other *control.PeerLink) bool { return other == link })
}

func (l *Links) lastLink() (*control.PeerLink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return nil, failure.ErrUnreachable
	}
	return l.all[len(l.all)-1], nil
}

// Lookup implements control.Switchboard.
func (l *Links) Lookup(ctx context.Context, name string) (netip.Addr, error) {
	link, err := l.lastLink()
	if err != nil {
		return netip.Addr{}, err
	}
	return link.Lookup(ctx, name)
}

// Dial implements control.Switchboard.
func (l *Links) Dial(ctx context.Context, protocol string, sourcePort uint16, destination netip.AddrPort) (*os.File, error) {
	link, err := l.lastLink()
	if err != nil {
		return nil, err
	}
	return link.Dial(ctx, protocol, sourcePort, destination)
}
