// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/machine/control"
)

// switchboard connects one machine to others of its namespace.
type switchboard struct {
	from *Instance
	host *Host
}

var _ control.Switchboard = switchboard{}

// Lookup implements control.Switchboard. Machines of other namespaces have no names.
func (s switchboard) Lookup(ctx context.Context, name string) (netip.Addr, error) {
	name, namespace, isFull := strings.Cut(name, ".")
	if isFull && namespace != s.from.Namespace {
		return netip.Addr{}, control.ErrNoMachine
	}
	all, err := s.host.directory.read(s.host)
	if err != nil {
		return netip.Addr{}, err
	}
	address, ok := all[peerName{s.from.Namespace, name}]
	if !ok {
		return netip.Addr{}, control.ErrNoMachine
	}
	return address, ctx.Err()
}

// Dial implements control.Switchboard.
func (s switchboard) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	if own, ok := s.host.Addresses.OwnerOf(s.from.Address.Addr()); !ok || own != s.from.UID {
		return nil, control.ErrNoMachine // it was released, and its address may be another machine's by now
	}
	uid, ok := s.host.Addresses.OwnerOf(to.Addr())
	if !ok {
		return nil, control.ErrNoMachine
	}
	peer, err := s.host.InstanceOf(uid).Load()
	if err != nil || !s.mayReach(peer) || peer.Address.Addr() != to.Addr() {
		return nil, control.ErrNoMachine
	}
	here, there, err := control.ConnectPeers(protocol)
	if err != nil {
		return nil, err
	}
	defer func() { _ = there.Close() }()
	c, err := peer.Supervisor().Reach(ctx)
	if err == nil {
		err = c.Accept(ctx, control.PeerConn{Protocol: protocol, From: netip.AddrPortFrom(s.from.Address.Addr(), from), Port: to.Port()}, there)
	}
	if err != nil {
		return nil, errors.Join(err, here.Close())
	}
	return here, nil
}

// mayReach reports whether the machine may connect to another: one that is of the same namespace and cluster.
func (s switchboard) mayReach(peer *Instance) bool {
	return peer.ClusterID == s.from.ClusterID && peer.Namespace == s.from.Namespace && peer.UID != s.from.UID && !peer.Retained
}

// peerName is the name of a machine.
type peerName struct{ namespace, name string }

// directoryHolds is how long the addresses of machines are remembered.
const directoryHolds = 2 * time.Second

// directory has the addresses of machines by their names.
type directory struct {
	mu     sync.Mutex
	readAt time.Time
	byName map[peerName]netip.Addr
}

// read returns the addresses. The map is not changed any more.
func (d *directory) read(h *Host) (map[peerName]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName != nil && h.Clock.Since(d.readAt) < directoryHolds {
		return d.byName, nil
	}
	all, err := h.AllInstances()
	if err != nil {
		return nil, err
	}
	byName := map[peerName]netip.Addr{}
	for _, inst := range all {
		r, err := inst.Load()
		if err == nil && !r.Retained && r.ClusterID == h.ClusterID && r.Address.IsValid() {
			byName[peerName{r.Namespace, r.Name}] = r.Address.Addr()
		}
	}
	d.byName, d.readAt = byName, h.Clock.Now()
	return byName, nil
}

// connectPeers lets a machine reach others until ctx ends, or its supervisor.
func (inst *Instance) connectPeers(ctx context.Context, c *control.Client) {
	if err := c.Connect(ctx, switchboard{inst, inst.Host}); err != nil && ctx.Err() == nil {
		inst.Host.Log.V(1).Info("Machine does not reach others any more", "uid", inst.UID, "cause", err.Error())
	}
}
