// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcp gets an IPv4 address for a guest's network interface (RFC 2131), as far as a machine
// with one interface needs it, and answers such a client. Start with Client, and with Answer in
// answer.go. Packets are in packet.go, which is pure.
package dhcp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Transport sends packets from port 68 to port 67 of all hosts of a network.
type Transport interface {
	// Send sends a packet.
	Send(packet []byte) error
	// Receive returns the next packet to port 68. It waits at most so long, and returns
	// ErrTimeout then.
	Receive(within time.Duration) ([]byte, error)
}

// ErrTimeout : no packet has come in time.
var ErrTimeout = errors.New("no answer of a DHCP server")

// Waits for an answer. Each is twice as long as the one before.
const (
	firstWait = 250 * time.Millisecond
	maxWait   = 8 * time.Second
	// maxStray is how many packets for others are read in one wait.
	maxStray = 64
)

// Client asks for a lease.
type Client struct {
	Transport Transport
	// MAC is the hardware address of the interface.
	MAC [6]byte
	// Hostname is what the server is told.
	Hostname string
}

// Acquire returns a lease, and tries until ctx ends.
func (c Client) Acquire(ctx context.Context) (Lease, error) {
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		lease, err := c.try(ctx, wait)
		if err == nil {
			return lease, nil
		}
		if ctx.Err() != nil {
			return Lease{}, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// try has one exchange of four packets.
func (c Client) try(ctx context.Context, wait time.Duration) (Lease, error) {
	id, err := newID()
	if err != nil {
		return Lease{}, err
	}
	request := message{kind: kindDiscover, id: id, mac: c.MAC, hostname: c.Hostname}
	offer, err := c.exchange(ctx, request, wait, kindOffer)
	if err != nil {
		return Lease{}, err
	}
	request.kind, request.requested, request.server = kindRequest, offer.Address.Addr(), offer.Server
	return c.exchange(ctx, request, wait, kindACK)
}

// Renew asks the network for a lease of the same address once more.
func (c Client) Renew(ctx context.Context, lease Lease) (Lease, error) {
	id, err := newID()
	if err != nil {
		return Lease{}, err
	}
	request := message{kind: kindRequest, id: id, mac: c.MAC, hostname: c.Hostname, requested: lease.Address.Addr()}
	return c.exchange(ctx, request, maxWait, kindACK)
}

// exchange sends a message and returns the first answer of a kind.
func (c Client) exchange(ctx context.Context, m message, wait time.Duration, kind byte) (Lease, error) {
	if err := c.Transport.Send(m.encode()); err != nil {
		return Lease{}, err
	}
	for range maxStray {
		if err := ctx.Err(); err != nil {
			return Lease{}, err
		}
		packet, err := c.Transport.Receive(wait)
		if err != nil {
			return Lease{}, err
		}
		got, lease, err := parse(packet, m.id, m.mac)
		switch {
		case err != nil: // of another client, or broken
		case got == kindNAK:
			return Lease{}, errors.New("the DHCP server refuses the address")
		case got == kind:
			return lease, nil
		}
	}
	return Lease{}, ErrTimeout
}

func newID() (uint32, error) {
	var id [4]byte
	_, err := rand.Read(id[:])
	return binary.BigEndian.Uint32(id[:]), err
}

// Lease is what a server lends.
type Lease struct {
	// Address has the length of the network's prefix.
	Address netip.Prefix
	// Router is not valid where the network has none.
	Router    netip.Addr
	Resolvers []netip.Addr
	// Search are the domains in which short names are looked up.
	Search []string
	// MTU is 0 where the server names none.
	MTU int
	// Server identifies the server.
	Server netip.Addr
	// Duration is how long the lease holds.
	Duration time.Duration
}

// Renewal is how long after the lease began the client asks for it again.
func (l Lease) Renewal() time.Duration { return max(l.Duration/2, time.Minute) }
