// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

var _ driver.Prober = (*Driver)(nil)

// Times between two looks at how far a connection has come.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// Probe connects to a port of the guest by way of its host port. That alone says
// nothing, since QEMU's network takes every connection to a host port and passes
// it on later, even to a guest that has not booted yet. So QEMU is asked how far
// this one has come.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	h, f, err := d.forwardTo(uid, port)
	if err != nil {
		return err
	}
	address := oneLoopback()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", net.JoinHostPort(address, strconv.Itoa(int(f.HostPort))))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	spoke := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		spoke <- err
	}()
	if err := d.untilConnected(ctx, h, address, spoke); err != nil {
		return fmt.Errorf("port %d of the guest, which host port %d leads to, %w", f.Port, f.HostPort, err)
	}
	return nil
}

// forwardTo finds what leads to a TCP port of a guest.
func (d *Driver) forwardTo(uid types.UID, port int32) (home, forward, error) {
	if err := checkUID(uid); err != nil {
		return home{}, forward{}, err
	}
	h := d.home(uid)
	r, err := h.load()
	if err != nil {
		return h, forward{}, err
	}
	n := slices.IndexFunc(r.Forwards, func(f forward) bool { return f.Protocol == "tcp" && f.Port == port })
	if n < 0 {
		return h, forward{}, fmt.Errorf("tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return h, r.Forwards[n], nil
}

// oneLoopback is one of the many addresses of this host itself. QEMU tells by
// it one connection from another.
func oneLoopback() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return net.IPv4(127, 1+b[0]%254, b[1], b[2]).String()
}

// untilConnected waits until the guest has taken a connection, which it may also
// show by speaking first.
func (d *Driver) untilConnected(ctx context.Context, h home, address string, spoke <-chan error) error {
	timer := d.Clock.NewTimer(firstLook)
	defer timer.Stop()
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return fmt.Errorf("took no connection: %w", ctx.Err())
		case err := <-spoke:
			if err != nil {
				return fmt.Errorf("refused the connection: %w", err)
			}
			return nil
		case <-timer.C():
		}
		table, err := h.connections(ctx)
		if err != nil {
			return fmt.Errorf("cannot be asked about: %w", err)
		}
		if isConnected(table, address) {
			return nil
		}
	}
}

// connections is QEMU's table of those of its user network.
func (h home) connections(ctx context.Context) (table string, err error) {
	err = h.command(ctx, "human-monitor-command", map[string]string{"command-line": "info usernet"}, &table)
	return table, err
}

// isConnected looks for the connection that was made to an address of this host,
// and tells whether the guest has answered it. A line of the table is
//
//	TCP[ESTABLISHED]  12  127.4.5.6  8080  10.0.2.15  80  0  0
func isConnected(table, address string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[2] != address {
			continue
		}
		state := strings.TrimSuffix(strings.TrimPrefix(fields[0], "TCP["), "]")
		return !slices.Contains([]string{"NONE", "CLOSED", "SYN_SENT", "SYN_RCVD"}, state)
	}
	return false
}
