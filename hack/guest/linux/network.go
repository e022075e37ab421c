// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/system"
)

const (
	// leaseWithin is how long the guest waits for an address.
	leaseWithin = 20 * time.Second
	// answerWithin is how long it waits for each answer.
	answerWithin = time.Second
)

// startNetwork gets an address by DHCP.
func startNetwork() error {
	link, err := system.FindLink()
	if err = errors.Join(err, system.StartLoopback()); err != nil {
		return err
	}
	if err := link.SetUp(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseWithin) //nolint:forbidigo // of init
	defer cancel()
	lease, err := acquireLease(ctx, link.Name)
	if err != nil {
		return err
	}
	address, _ := netip.AddrFromSlice(lease.YourIPAddr.To4())
	length, _ := lease.SubnetMask().Size()
	n := config.Network{Address: netip.PrefixFrom(address, length)}
	if routers := lease.Router(); len(routers) > 0 {
		n.Gateway, _ = netip.AddrFromSlice(routers[0].To4())
	}
	var resolvers strings.Builder
	for _, r := range lease.DNS() {
		resolvers.WriteString("nameserver " + r.String() + "\n")
	}
	return errors.Join(link.Configure(n), os.MkdirAll("/etc", 0o755), os.WriteFile("/etc/resolv.conf", []byte(resolvers.String()), 0o644)) //nolint:gosec // of this guest
}

// acquireLease asks all servers of a network for an address until one answers.
func acquireLease(ctx context.Context, name string) (*dhcpv4.DHCPv4, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	listen := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.BindToDevice(int(fd), name), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		})
		return errors.Join(controlErr, err)
	}}
	conn, err := listen.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", dhcpv4.ClientPort))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	for {
		lease, err := exchange(conn, device.HardwareAddr)
		if err == nil || ctx.Err() != nil {
			return lease, err
		}
	}
}

// exchange sends a discovery and a request, and returns the lease.
func exchange(conn net.PacketConn, mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	discovery, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	offer, err := ask(conn, discovery, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	return ask(conn, request, dhcpv4.MessageTypeAck)
}

// ask sends a message and returns the answer of a type.
func ask(conn net.PacketConn, m *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	if _, err := conn.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(answerWithin)); err != nil { //nolint:forbidigo // of init
		return nil, err
	}
	packet := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(packet)
		if err != nil {
			return nil, err
		}
		answer, err := dhcpv4.FromBytes(packet[:n])
		if err == nil && answer.TransactionID == m.TransactionID && answer.MessageType() == want {
			return answer, nil
		}
	}
}
