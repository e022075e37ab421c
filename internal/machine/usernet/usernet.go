// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package usernet follows connections to guests through QEMU's user network.
//
// Start with IsConnected, which reads QEMU's table of connections. The other functions find a
// connection in that table: by an address that no other connection has, or by QEMU's
// descriptor for it.
package usernet

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/proc"
)

// RandomLoopback returns one of the many loopback addresses of this host. QEMU's table shows
// it, which distinguishes connections.
func RandomLoopback() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return net.IPv4(127, 1+b[0]%254, b[1], b[2]).String()
}

// FindDescriptor returns the descriptor that a process of this host has for the other end of a
// connection; empty if it has none, as until it has accepted the connection.
func FindDescriptor(pid int, conn net.Conn) string {
	return descriptorOf(pid, acceptedSocket(conn))
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

// IsConnected looks for a connection to an address of this host, with a descriptor
// where one is given, and reports whether the guest has answered it. A line of the
// table is
//
//	TCP[ESTABLISHED]  12  127.4.5.6  8080  10.0.2.15  80  0  0
func IsConnected(table, address, fd string) bool {
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

// WaitReadable waits until there is something to read from a connection, and leaves it there.
func WaitReadable(conn net.Conn) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var readErr error
	err = raw.Read(func(fd uintptr) bool {
		n, _, readErr = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(readErr, unix.EAGAIN)
	})
	if err == nil && readErr == nil && n == 0 {
		return io.EOF
	}
	return cmp.Or(err, readErr)
}
