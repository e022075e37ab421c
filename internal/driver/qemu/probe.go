// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/proc"
)

var _ driver.Prober = (*Driver)(nil)

// Intervals between two looks at how far a connection has come.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// Probe connects to a port of the guest by way of its host port. The connection alone
// proves nothing: QEMU's network accepts every connection to a host port and passes it on
// later, even to a guest that has not booted yet. So Probe asks QEMU how far the
// connection has come.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	h, f, err := d.forwardTo(uid, port)
	if err != nil {
		return err
	}
	address := cmp.Or(f.HostIP, oneLoopback())
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
	if err := d.untilConnected(ctx, h, f, conn, spoke); err != nil {
		return fmt.Errorf("port %d of the guest, which host port %d leads to, %w", f.Port, f.HostPort, err)
	}
	return nil
}

// forwardTo returns the forward that leads to a TCP port of a guest.
func (d *Driver) forwardTo(uid types.UID, port int32) (instanceDir, forward, error) {
	if err := checkUID(uid); err != nil {
		return instanceDir{}, forward{}, err
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

// oneLoopback returns one of the many loopback addresses of this host. QEMU's table shows
// it, which distinguishes connections.
func oneLoopback() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return net.IPv4(127, 1+b[0]%254, b[1], b[2]).String()
}

// untilConnected waits until the guest has taken a connection. A guest that sends data
// first has taken it too.
func (d *Driver) untilConnected(ctx context.Context, h instanceDir, f forward, conn net.Conn, spoke <-chan error) error {
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
		if h.isAnswered(table, f, conn) {
			return nil
		}
	}
}

// connections returns QEMU's table of the connections of its user network.
func (h instanceDir) connections(ctx context.Context) (table string, err error) {
	err = h.command(ctx, "human-monitor-command", map[string]string{"command-line": "info usernet"}, &table)
	return table, err
}

// isAnswered reports whether the guest has answered a connection. A connection to a port
// on all addresses went to an address that no other uses. On a single address others may
// be connected too, so QEMU's end of this one is found by its descriptor.
func (h instanceDir) isAnswered(table string, f forward, conn net.Conn) bool {
	address, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	if f.HostIP == "" {
		return isConnected(table, address, "")
	}
	fd := descriptorOf(h.pid(uidOf(h.path)), acceptedSocket(conn))
	return fd != "" && isConnected(table, address, fd)
}

// acceptedSocket returns the inode of a connection's other end on this host. It is 0
// until the connection was accepted. A line of the kernel's table is
//
//	1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000 0 0 98765 1 ...
func acceptedSocket(conn net.Conn) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	there, here := kernelAddress(conn.RemoteAddr()), kernelAddress(conn.LocalAddr())
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 9 && fields[1] == there && fields[2] == here {
			return fields[9]
		}
	}
	return ""
}

// kernelAddress formats an address as the kernel's table does: the bytes of the address
// in the order of the only processors that machines run on, and those of the port in
// network order.
func kernelAddress(a net.Addr) string {
	to, ok := a.(*net.TCPAddr)
	if !ok || to.IP.To4() == nil {
		return ""
	}
	return fmt.Sprintf("%08X:%04X", binary.LittleEndian.Uint32(to.IP.To4()), to.Port)
}

// descriptorOf returns the descriptor that a process has for a socket.
func descriptorOf(pid int, inode string) string {
	links, _ := filepath.Glob(proc.Path(pid, "fd/*"))
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == "socket:["+inode+"]" {
			return filepath.Base(link)
		}
	}
	return ""
}

// isConnected looks for a connection to an address of this host, with a descriptor
// where one is given, and reports whether the guest has answered it. A line of the
// table is
//
//	TCP[ESTABLISHED]  12  127.4.5.6  8080  10.0.2.15  80  0  0
func isConnected(table, address, fd string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[2] != address || fd != "" && fields[1] != fd {
			continue
		}
		state := strings.TrimSuffix(strings.TrimPrefix(fields[0], "TCP["), "]")
		return !slices.Contains([]string{"NONE", "CLOSED", "SYN_SENT", "SYN_RCVD"}, state)
	}
	return false
}
