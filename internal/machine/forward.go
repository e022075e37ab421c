// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

var ruleFailed = regexp.MustCompile(`(?i)could not set up host forwarding rule '([^']*)'`)

// findTaken returns the index of the forward that QEMU ended over, -1 if there is none.
func findTaken(output string, forwards []launch.Forward) int {
	said := ruleFailed.FindStringSubmatch(output)
	return slices.IndexFunc(forwards, func(f launch.Forward) bool { return said != nil && said[1] == f.HostfwdRule() })
}

// FreePort returns the host port of a forward if it is free, or any free one where that is
// 0. It tries to open the port.
func FreePort(ctx context.Context, f launch.Forward) (int32, error) {
	var config net.ListenConfig
	address := net.JoinHostPort(cmp.Or(f.HostIP, net.IPv4zero.String()), strconv.Itoa(int(f.HostPort)))
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

// Intervals between two checks of how far a connection has come.
const (
	firstCheck = 5 * time.Millisecond
	lastCheck  = 200 * time.Millisecond
)

// Probe connects to a port of the guest by way of its host port. The connection alone
// proves nothing: QEMU's network accepts every connection to a host port and passes it on
// later, even to a guest that has not booted yet. So Probe asks QEMU how far the
// connection has come.
func (m Machine) Probe(ctx context.Context, c clock.Clock, f launch.Forward) error {
	address := cmp.Or(f.HostIP, randomLoopback())
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
	if err := m.waitConnected(ctx, c, f, conn, spoke); err != nil {
		return fmt.Errorf("port %d of the guest, which host port %d leads to, %w", f.Port, f.HostPort, err)
	}
	return nil
}

// randomLoopback returns one of the many loopback addresses of this host. QEMU's table shows
// it, which distinguishes connections.
func randomLoopback() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return net.IPv4(127, 1+b[0]%254, b[1], b[2]).String()
}

// waitConnected waits until the guest has taken a connection. A guest that sends data
// first has taken it too.
func (m Machine) waitConnected(ctx context.Context, c clock.Clock, f launch.Forward, conn net.Conn, spoke <-chan error) error {
	timer := c.NewTimer(firstCheck)
	defer timer.Stop()
	for wait := firstCheck; ; wait = min(2*wait, lastCheck) {
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
		table, err := m.connectionTable(ctx)
		if err != nil {
			return fmt.Errorf("cannot be asked about: %w", err)
		}
		if m.isAnswered(table, f, conn) {
			return nil
		}
	}
}

// connectionTable returns QEMU's table of the connections of its user network.
func (m Machine) connectionTable(ctx context.Context) (table string, err error) {
	err = m.Execute(ctx, "human-monitor-command", map[string]string{"command-line": "info usernet"}, &table)
	return table, err
}

// isAnswered reports whether the guest has answered a connection. A connection to a port
// on all addresses went to an address that no other uses. On a single address others may
// be connected too, so QEMU's end of this one is found by its descriptor.
func (m Machine) isAnswered(table string, f launch.Forward, conn net.Conn) bool {
	address, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	if f.HostIP == "" {
		return isConnected(table, address, "")
	}
	fd := descriptorOf(m.PID(), acceptedSocket(conn))
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
