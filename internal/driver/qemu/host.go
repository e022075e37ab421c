// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

// checkMemory refuses a guest that the host has no room for.
func checkMemory(needed int64) error {
	available, err := memoryAvailable("/proc/meminfo")
	if err != nil {
		return nil //nolint:nilerr // A host that does not tell is tried.
	}
	if needed > available {
		return driver.Errorf(driver.ErrExhausted, "resource.memory: needed %d bytes, available on the host %d", needed, available)
	}
	return nil
}

func memoryAvailable(path string) (int64, error) {
	f, err := os.Open(path) //nolint:gosec // a constant
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s does not tell MemAvailable", path)
}

// forwardsOf finds host ports for the ports of a spec. One that is taken is
// named here, since QEMU would not say which of the spec's it is.
func forwardsOf(ctx context.Context, ports []driver.Port) ([]forward, error) {
	forwards := make([]forward, 0, len(ports))
	for i, p := range ports {
		f := forward{Protocol: "tcp", HostPort: p.HostPort, Port: p.Port}
		if p.Protocol == "UDP" {
			f.Protocol = "udp"
		}
		free, err := freePort(ctx, f)
		if err != nil {
			return nil, driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry,
				"ports[%d] (%s): host port %d/%s cannot be had: %w", i, p.Name, p.HostPort, f.Protocol, err))
		}
		f.HostPort = free
		forwards = append(forwards, f)
	}
	return forwards, nil
}

// freePort tries a port, or finds one where it is 0.
func freePort(ctx context.Context, f forward) (int32, error) {
	var config net.ListenConfig
	address := net.JoinHostPort("0.0.0.0", strconv.Itoa(int(f.HostPort)))
	if f.Protocol == "udp" {
		conn, err := config.ListenPacket(ctx, "udp4", address)
		if err != nil {
			return 0, err
		}
		return portOf(conn.LocalAddr()), conn.Close()
	}
	listener, err := config.Listen(ctx, "tcp4", address)
	if err != nil {
		return 0, err
	}
	return portOf(listener.Addr()), listener.Close()
}

func portOf(a net.Addr) int32 {
	switch a := a.(type) {
	case *net.TCPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	case *net.UDPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	}
	return 0
}
