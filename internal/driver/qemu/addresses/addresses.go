// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package addresses assigns each machine a different address of a range. Each assignment is a symbolic link in a folder,
// with the address as its name and the machine's UID as its target, so that it outlasts processes and crashes.
//
// Start with Pool.
package addresses

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// Limits of the range's prefix length. Even the longest prefix leaves some addresses for machines, in addition to the
// addresses of the network, the gateway and the broadcast.
const (
	shortest = 8
	longest  = 29
)

// ranges are tried in this order if the flag is empty. There are several, because a machine of Drover that itself runs
// Drover has an address in the first range.
var ranges = []string{"10.213.0.0/16", "10.214.0.0/16", "10.215.0.0/16", "172.29.0.0/16", "172.30.0.0/16", "192.168.208.0/20"}

// ParseRange parses the flag --qemu-network, and rejects a range that the host itself uses. For an empty flag it returns
// the range of ranges in which most machines have addresses and that the host does not use. dir is the folder with the
// links of assigned addresses, which may be missing.
func ParseRange(text, dir string) (netip.Prefix, error) {
	if text != "" {
		return parseRange(text)
	}
	candidates := slices.Clone(ranges)
	slices.SortStableFunc(candidates, func(a, b string) int { return cmp.Compare(countAssigned(b, dir), countAssigned(a, dir)) })
	var last error
	for _, candidate := range candidates {
		var p netip.Prefix
		if p, last = parseRange(candidate); last == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("none of %s can be the machines' network: %w", strings.Join(candidates, ", "), last)
}

// countAssigned returns how many machines have an address of a range.
func countAssigned(text, dir string) (n int) {
	p := netip.MustParsePrefix(text)
	links, _ := os.ReadDir(dir)
	for _, link := range links {
		if a, err := netip.ParseAddr(link.Name()); err == nil && p.Contains(a) {
			n++
		}
	}
	return n
}

func parseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() < shortest || p.Bits() > longest || !p.Addr().IsPrivate() {
		return p, fmt.Errorf("--qemu-network is %q: it must be a private IPv4 range of /%d to /%d, such as 10.213.0.0/16", text, shortest, longest)
	}
	hostAddresses, err := net.InterfaceAddrs()
	if err != nil {
		return p, fmt.Errorf("finding this host's addresses: %w", err)
	}
	const advice = "choose with --qemu-network a private IPv4 range in which it has neither an address nor a route, except for a default route (ip route show table all)"
	for _, a := range hostAddresses {
		other, err := netip.ParsePrefix(a.String())
		if err == nil && p.Overlaps(other.Masked()) {
			return p, fmt.Errorf("--qemu-network is %s, and this host has the address %s: %s", text, other, advice)
		}
	}
	routes, err := listRoutes()
	if err != nil {
		return p, err
	}
	for _, r := range routes {
		if p.Overlaps(r.to) {
			return p, fmt.Errorf("--qemu-network is %s, and this host has a route to %s%s: %s", text, r.to, r.viaInterface(), advice)
		}
	}
	return p, nil
}

// Pool assigns addresses to machines.
type Pool struct {
	// Range has the addresses, and Dir is the folder with the links.
	Range netip.Prefix
	Dir   string
	// IsGone reports whether the machine with a UID no longer exists.
	IsGone func(types.UID) bool

	mu sync.Mutex // guards the links against this process only: no other process changes them, since it does not lead
}

// Take assigns an address to a machine, and returns it with the prefix length of the range. It prefers the address that
// the machine has or had last.
func (p *Pool) Take(uid types.UID, previous netip.Prefix) (netip.Prefix, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if previous.Bits() == p.Range.Bits() && p.Range.Contains(previous.Addr()) && p.reserveAddress(uid, previous.Addr()) == nil {
		return previous, nil
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid))
	size := uint32(1)<<(32-p.Range.Bits()) - 3 // without the network, the gateway and the broadcast address
	begin := hash.Sum32() % size
	for n := range size {
		address := p.addressAt((begin + n) % size)
		err := p.reserveAddress(uid, address)
		if !errors.Is(err, fs.ErrExist) {
			return netip.PrefixFrom(address, p.Range.Bits()), err
		}
	}
	return netip.Prefix{}, driver.Errorf(driver.ErrRetry, "all %d addresses of %s (--qemu-network) are taken", size, p.Range)
}

// addressAt returns the n-th address that a machine may have.
func (p *Pool) addressAt(n uint32) netip.Addr {
	base := p.Range.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+2+n)
	return netip.AddrFrom4(a)
}

func (p *Pool) linkPath(address netip.Addr) string { return filepath.Join(p.Dir, address.String()) }

// reserveAddress assigns an address to a machine, or fails with fs.ErrExist if another machine has it.
func (p *Pool) reserveAddress(uid types.UID, address netip.Addr) error {
	for range 2 {
		err := os.Symlink(string(uid), p.linkPath(address))
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		owner, err := os.Readlink(p.linkPath(address))
		switch {
		case err == nil && owner == string(uid):
			return nil
		case err == nil && !p.IsGone(types.UID(owner)):
			return fs.ErrExist
		case err == nil:
			p.releaseAddress(types.UID(owner), address)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return fs.ErrExist
}

// Release ends the assignment of an address. It ignores errors: Take removes the link of a machine that is gone.
func (p *Pool) Release(uid types.UID, address netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseAddress(uid, address)
}

func (p *Pool) releaseAddress(uid types.UID, address netip.Addr) {
	if owner, err := os.Readlink(p.linkPath(address)); err == nil && owner == string(uid) {
		_ = os.Remove(p.linkPath(address))
	}
}
