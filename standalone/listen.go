// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"cloudnative.tw/drover/standalone/internal/datadir"
)

// usualPort is tried first, so that most people's kubeconfig looks familiar.
const usualPort = 6443

// listen opens the port before anything else starts: a port in use is the
// likeliest trouble, and an open one cannot be taken by somebody else.
func (o *upOptions) listen(ctx context.Context, dir *datadir.Dir, bind net.IP) (net.Listener, error) {
	if o.port < 0 || o.port > 65535 {
		return nil, fmt.Errorf("--port %d is none: 0 to 65535", o.port)
	}
	listener, err := o.tryPorts(ctx, dir, bind)
	if err != nil {
		return nil, err
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s has no port", listener.Addr()), listener.Close())
	}
	if err := dir.SetPort(addr.Port); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// tryPorts: a port that was asked for, or else kept, is the one or none, since
// clients know it. "0" takes any where the kept one is gone.
func (o *upOptions) tryPorts(ctx context.Context, dir *datadir.Dir, bind net.IP) (net.Listener, error) {
	if o.port != 0 {
		return listenOn(ctx, bind, o.port)
	}
	first, err := dir.Port()
	if err != nil {
		return nil, err
	}
	if first != 0 && !o.portGiven {
		return listenOn(ctx, bind, first)
	}
	if first == 0 && !o.portGiven {
		first = usualPort
	}
	if listener, err := listenOn(ctx, bind, first); err == nil {
		return listener, nil
	}
	return listenOn(ctx, bind, 0)
}

func listenOn(ctx context.Context, bind net.IP, port int) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(bind.String(), strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port %d on %s is in use by another program: give another with --port, 0 for a free one", port, bind)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--bind-address %s is no address of this host", bind)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("no permission to serve on port %d: give one above 1023 with --port", port)
	}
	return listener, err
}

// localIPs are the addresses that a server on all of them is called by.
func localIPs() []net.IP {
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
