// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package port opens the port of the API: the requested port, or the port of the last
// start. Start with Listen.
package port

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// Default is the port that the first start tries first, so that kubeconfigs look familiar.
const Default = 6443

// Store stores a port between starts.
type Store interface {
	Port() (int, error) // 0 if none is stored yet
	SetPort(port int) error
}

// Listen opens the port. It should be called before anything else starts: a port in use is
// the most likely problem, and no other program can take an open port. requested is nil if no
// port was requested, and 0 for any free port.
func Listen(ctx context.Context, bind string, requested *int, store Store) (net.Listener, error) {
	ip := net.ParseIP(bind)
	if ip == nil {
		return nil, fmt.Errorf("--bind-address %q is not an IP address", bind)
	}
	if requested != nil && (*requested < 0 || *requested > 65535) {
		return nil, fmt.Errorf("--port is %d: it must be 0 to 65535", *requested)
	}
	listener, err := listenOnChoice(ctx, ip, requested, store)
	if err != nil {
		return nil, err
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listening on %s, which is not a TCP address", listener.Addr()), listener.Close())
	}
	if err := store.SetPort(addr.Port); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// listenOnChoice opens the requested port, or else the stored port. It does not fall back to
// another port, because clients know the port. If requested is 0, it opens any free port if the
// stored port is not available.
func listenOnChoice(ctx context.Context, ip net.IP, requested *int, store Store) (net.Listener, error) {
	if requested != nil && *requested != 0 {
		return listenOn(ctx, ip, *requested)
	}
	stored, err := store.Port()
	if err != nil {
		return nil, err
	}
	if stored != 0 && requested == nil {
		return listenOn(ctx, ip, stored)
	}
	if stored == 0 && requested == nil {
		stored = Default
	}
	if listener, err := listenOn(ctx, ip, stored); err == nil {
		return listener, nil
	}
	return listenOn(ctx, ip, 0)
}

func listenOn(ctx context.Context, ip net.IP, port int) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d on %s is in use by another program: give another port with --port, or 0 for a free port", port, ip)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--bind-address %s is not an address of this host", ip)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("no permission to serve on port %d: give a port above 1023 with --port", port)
	}
	return listener, err
}

// LocalIPs returns the addresses of this host at which clients can reach a server that listens on all addresses.
func LocalIPs() []net.IP {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var ips []net.IP
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			ips = append(ips, n.IP)
		}
	}
	return ips
}
