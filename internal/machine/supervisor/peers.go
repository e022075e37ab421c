// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net/netip"
	"os"
	"sync"

	"cloudnative.tw/drover/internal/machine/control"
)

// Links are a machine's links to its switchboard. The last one is used: the switchboard of the others was replaced.
type Links struct {
	mu   sync.Mutex
	last *control.PeerLink
}

var _ control.Switchboard = (*Links)(nil)

// use makes calls go over a link.
func (l *Links) use(link *control.PeerLink) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = link
}

// get returns the last link.
func (l *Links) get() (*control.PeerLink, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		return nil, control.ErrUnreachable
	}
	return l.last, nil
}

// Lookup implements control.Switchboard.
func (l *Links) Lookup(ctx context.Context, name string) (netip.Addr, error) {
	link, err := l.get()
	if err != nil {
		return netip.Addr{}, err
	}
	return link.Lookup(ctx, name)
}

// Dial implements control.Switchboard.
func (l *Links) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	link, err := l.get()
	if err != nil {
		return nil, err
	}
	return link.Dial(ctx, protocol, from, to)
}

// Join implements control.Peer.
func (s *Supervisor) Join(link *control.PeerLink) {
	s.Links.use(link)
	link.Follow()
}

// Accept implements control.Peer.
func (s *Supervisor) Accept(ctx context.Context, c control.PeerConn, socket *os.File) error {
	if err := s.checkRunning(); err != nil {
		return err
	}
	return s.Network.Accept(ctx, c, socket)
}
