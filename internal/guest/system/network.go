// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
)

// Link is a network interface.
type Link struct{ Name string }

// StartLoopback sets the loopback interface up.
func StartLoopback() error { return setUp("lo") }

// FindLink returns the first network interface other than the loopback one.
func FindLink() (Link, error) {
	for range lookWithin / lookEvery {
		paths, err := filepath.Glob("/sys/class/net/*/device")
		if err != nil {
			return Link{}, err
		}
		slices.Sort(paths)
		for _, path := range paths {
			return Link{filepath.Base(filepath.Dir(path))}, nil
		}
		<-time.After(lookEvery)
	}
	return Link{}, errors.New("the machine lacks a network interface")
}

// SetUp sets the interface up.
func (l Link) SetUp() error { return setUp(l.Name) }

// Configure gives the interface its address, MTU and default route.
func (l Link) Configure(n config.Network) error {
	mask := netip.AddrFrom4([4]byte(net.CIDRMask(n.Address.Bits(), 32)))
	return withSocket(func(socket int) error {
		err := errors.Join(setAddress(socket, unix.SIOCSIFADDR, l.Name, n.Address.Addr()), setAddress(socket, unix.SIOCSIFNETMASK, l.Name, mask))
		if err == nil && n.MTU > 0 {
			err = setMTU(socket, l.Name, uint32(n.MTU)) //nolint:gosec // checked
		}
		if err == nil && n.Gateway.IsValid() {
			err = addDefaultRoute(socket, n.Gateway)
		}
		return err
	})
}

func withSocket(call func(socket int) error) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	return call(socket)
}

func setUp(name string) error {
	return withSocket(func(socket int) error {
		request, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_UP)
		if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
		return nil
	})
}

func setAddress(socket int, command uint, name string, address netip.Addr) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(address.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, command, request); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, address, err)
	}
	return nil
}

func setMTU(socket int, name string, value uint32) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint32(value)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFMTU, request); err != nil {
		return fmt.Errorf("set the MTU of %s to %d: %w", name, value, err)
	}
	return nil
}

// routeEntry is struct rtentry of 64-bit systems.
type routeEntry struct {
	_                             uint64
	destination, gateway, genmask unix.RawSockaddrInet4
	flags                         uint16
	_                             [120 - 58]byte
}

const routeUpGateway = 1 | 2 // RTF_UP, RTF_GATEWAY

func addDefaultRoute(socket int, router netip.Addr) error {
	ipv4 := func(a netip.Addr) unix.RawSockaddrInet4 {
		return unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.As4()}
	}
	entry := routeEntry{destination: ipv4(netip.IPv4Unspecified()), gateway: ipv4(router), genmask: ipv4(netip.IPv4Unspecified()), flags: routeUpGateway}
	if err := ioctl(socket, unix.SIOCADDRT, unsafe.Pointer(&entry)); err != nil && !errors.Is(err, unix.EEXIST) { //nolint:gosec // a system call
		return fmt.Errorf("add the route to %s: %w", router, err)
	}
	return nil
}
