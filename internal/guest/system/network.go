// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/dhcp"
)

// Link is a network interface.
type Link struct {
	Name string
	MAC  [6]byte
}

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
			dir := filepath.Dir(path)
			text, err := os.ReadFile(filepath.Join(dir, "address")) //nolint:gosec // of sysfs
			if err != nil || len(text) < 17 {
				continue
			}
			if mac, err := net.ParseMAC(string(text[:17])); err == nil {
				return Link{Name: filepath.Base(dir), MAC: [6]byte(mac)}, nil
			}
		}
		<-time.After(lookEvery)
	}
	return Link{}, errors.New("the machine has no network interface")
}

// SetUp sets the interface up.
func (l Link) SetUp() error { return setUp(l.Name) }

// Configure gives the interface what a lease has.
func (l Link) Configure(lease dhcp.Lease) error {
	mask := netip.AddrFrom4([4]byte(net.CIDRMask(lease.Address.Bits(), 32)))
	return withSocket(func(socket int) error {
		err := errors.Join(setAddress(socket, unix.SIOCSIFADDR, l.Name, lease.Address.Addr()), setAddress(socket, unix.SIOCSIFNETMASK, l.Name, mask))
		if err == nil && lease.MTU >= 576 {
			err = setMTU(socket, l.Name, uint32(lease.MTU)) //nolint:gosec // 16 bits
		}
		if err == nil && lease.Router.IsValid() {
			err = addDefaultRoute(socket, lease.Router)
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

func setAddress(socket int, what uint, name string, address netip.Addr) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(address.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, what, request); err != nil {
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

// Acquire asks the interface's network for a lease.
func (l Link) Acquire(ctx context.Context, hostname string) (dhcp.Lease, error) {
	t, err := l.open()
	if err != nil {
		return dhcp.Lease{}, err
	}
	defer t.close()
	return dhcp.Client{Transport: t, MAC: l.MAC, Hostname: hostname}.Acquire(ctx)
}

// Renew asks for a lease once more.
func (l Link) Renew(ctx context.Context, hostname string, lease dhcp.Lease) (dhcp.Lease, error) {
	t, err := l.open()
	if err != nil {
		return dhcp.Lease{}, err
	}
	defer t.close()
	return dhcp.Client{Transport: t, MAC: l.MAC, Hostname: hostname}.Renew(ctx, lease)
}

// transport is a socket of an interface that may have no address yet.
type transport struct{ socket int }

const clientPort, serverPort = 68, 67

func (l Link) open() (*transport, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t := &transport{socket}
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.BindToDevice(socket, l.Name),
		unix.Bind(socket, &unix.SockaddrInet4{Port: clientPort}))
	if err != nil {
		t.close()
		return nil, fmt.Errorf("a socket for DHCP: %w", err)
	}
	return t, nil
}

func (t *transport) close() { _ = unix.Close(t.socket) }

// Send sends a packet to all hosts.
func (t *transport) Send(packet []byte) error {
	return unix.Sendto(t.socket, packet, 0, &unix.SockaddrInet4{Port: serverPort, Addr: [4]byte{255, 255, 255, 255}})
}

// Receive returns the next packet.
func (t *transport) Receive(within time.Duration) ([]byte, error) {
	limit := unix.NsecToTimeval(int64(within))
	if err := unix.SetsockoptTimeval(t.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, err
	}
	packet := make([]byte, 1<<16)
	n, _, err := unix.Recvfrom(t.socket, packet, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil, dhcp.ErrTimeout
	}
	return packet[:max(n, 0)], err
}
