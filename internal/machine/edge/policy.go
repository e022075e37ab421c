// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// RouteTable tells what the kernel would do with packets to an address.
type RouteTable interface {
	// CheckUnicast returns nil if they would leave the host for one other host.
	CheckUnicast(to netip.Addr) error
}

// Errors of addresses that a guest may not connect to.
var (
	ErrDenied    = errors.New("the operator allows no connections there")
	ErrNoEgress  = errors.New("the operator allows only connections to other machines")
	ErrSpecial   = errors.New("it is an address for special use")
	ErrNoUnicast = errors.New("the host has no route to another host there")
)

// special are the ranges of IPv4 that no guest reaches through its host (RFC 6890): the host itself, links, what names no
// single host, and where clouds tell a host its secrets.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("168.63.129.16/32"),   // metadata of Azure
	netip.MustParsePrefix("100.100.100.200/32"), // metadata of Alibaba Cloud
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// checkOutside returns nil if the guest may connect to an address through the host. The address is the one that is
// dialled, not a name for it.
func (e *Edge) checkOutside(to netip.Addr) error {
	egress := e.getEgress()
	isIn := func(p netip.Prefix) bool { return p.Contains(to) }
	switch {
	case !to.Is4(): // in any form, mapped ones too
		return ErrSpecial
	case e.Address.Masked().Contains(to): // it is a machine's, or nobody's, and never the host's network's
		return failure.ErrNoMachine
	case slices.ContainsFunc(special, isIn):
		return ErrSpecial
	case egress.Deny:
		return ErrNoEgress
	case slices.ContainsFunc(egress.Denied, isIn):
		return ErrDenied
	}
	if err := e.Routes.CheckUnicast(to); err != nil {
		return fmt.Errorf("%w: %w", ErrNoUnicast, err)
	}
	return nil
}

// getEgress returns where the guest may connect to now.
func (e *Edge) getEgress() control.Egress {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wanted.Egress
}

// SetWanted implements control.Network.
func (e *Edge) SetWanted(_ context.Context, w control.Wanted) (served []control.Port, err error) {
	served, open, err := e.replaceWanted(w)
	for conn, address := range open {
		if err := e.checkOutside(address); err != nil {
			control.Reset(conn)
		}
	}
	return served, err
}

// replaceWanted replaces the wanted configuration, and returns the ports that are served then and the connections that are open.
func (e *Edge) replaceWanted(w control.Wanted) (served []control.Port, open map[net.Conn]netip.Addr, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.Revision.IsBefore(e.wanted.Revision) {
		return nil, nil, failure.ErrStale
	}
	e.wanted = w
	e.setPorts(w.Ports)
	return e.servedPorts(), maps.Clone(e.outside), nil
}

// noteOutside remembers a connection through the host, until it is forgotten.
func (e *Edge) noteOutside(conn net.Conn, to netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.outside[conn] = to
}

// forgetOutside forgets a connection. It does nothing for nil, and for a connection that does not lead through the host.
func (e *Edge) forgetOutside(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.outside, conn)
}
