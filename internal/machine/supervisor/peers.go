// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"

	"cloudnative.tw/drover/internal/machine/control"
)

// Links are a machine's links to its switchboard. The last one that has not ended is used. Several processes may give it
// one at the same time, and the switchboard keeps one of them, which may be any.
type Links struct {
	mu  sync.Mutex
	all []*control.PeerLink
}

var _ control.Switchboard = (*Links)(nil)

// followLink makes calls go over a link until it ends.
func (l *Links) followLink(link *control.PeerLink) {
	l.mu.Lock()
	l.all = append(l.all, link)
	l.mu.Unlock()
	link.Follow()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(other *control.PeerLink) bool { return other == link })
}

// lastLink returns the last link.
func (l *Links) lastLink() (*control.PeerLink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return nil, control.ErrUnreachable
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

// Join implements control.Peer.
func (s *Supervisor) Join(link *control.PeerLink) { s.Links.followLink(link) }

// Accept implements control.Peer.
func (s *Supervisor) Accept(ctx context.Context, c control.PeerConn, socket *os.File) error {
	if err := s.checkRunning(); err != nil {
		return err
	}
	return s.Network.Accept(ctx, c, socket)
}
