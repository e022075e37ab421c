// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Confined is a program with its policy. docs/rights.md describes it to people.
type Confined struct {
	Policy

	// StartsNothing is set for a program that calls DenyStarts before it reads anything.
	StartsNothing bool
}

// Limit restricts the arguments of a system call.
type Limit struct {
	Call     uintptr
	Prevents string
}

// DeniedCalls returns the system calls that fail with any arguments.
func (c Confined) DeniedCalls() []uintptr {
	denied := c.deniedCalls()
	if c.StartsNothing {
		denied = append(denied, c.startedCalls()...)
	}
	return denied
}

// Limits returns the limits on the other system calls.
func (c Confined) Limits() (limits []Limit) {
	rules := baseRules
	if c.StartsNothing {
		rules = startRules(0)
	}
	for _, rule := range rules {
		limits = append(limits, Limit{rule.call, rule.prevents})
	}
	return limits
}

// Socket is a system call about sockets that a program may need.
type Socket struct {
	Does      string
	call      uint32
	arguments []uint32
}

// Sockets are the calls that some programs may make and others may not.
var Sockets = []Socket{
	{"make a socket for TCP", unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_STREAM}},
	{"make a socket for UDP", unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP}},
	{"make a socket for pings", unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}},
	{"make a socket that asks for routes", unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
	{"make another socket of netlink", unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
	{"make a raw socket", unix.SYS_SOCKET, []uint32{unix.AF_PACKET, unix.SOCK_RAW}},
	{"make a unix socket", unix.SYS_SOCKET, []uint32{unix.AF_UNIX, unix.SOCK_STREAM}},
	{"make a pair of unix sockets", unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_STREAM}},
	{"connect a socket", unix.SYS_CONNECT, nil},
	{"bind a socket to an address", unix.SYS_BIND, nil},
	{"make a socket listen", unix.SYS_LISTEN, nil},
	{"accept connections of a socket that it was given", unix.SYS_ACCEPT4, nil},
}

// May reports whether the filters of a program allow a call.
func (c Confined) May(s Socket) (bool, error) {
	filters := [][]bpf.Instruction{makeFilter(c.Rights)}
	if c.StartsNothing {
		filters = append(filters, makeStartFilter(0, c.Rights))
	}
	for _, filter := range filters {
		answer, err := runFilter(filter, auditArch, s.call, s.arguments...)
		if err != nil || answer != unix.SECCOMP_RET_ALLOW {
			return false, err
		}
	}
	return true, nil
}

// runFilter returns the answer of a filter to a system call.
func runFilter(filter []bpf.Instruction, arch, number uint32, arguments ...uint32) (int, error) {
	machine, err := bpf.NewVM(filter)
	if err != nil {
		return 0, fmt.Errorf("reading a filter of system calls: %w", err)
	}
	// The virtual machine reads numbers in network order, and the kernel in host order.
	data := make([]byte, lowerHalf(6))
	binary.BigEndian.PutUint32(data[callNumber:], number)
	binary.BigEndian.PutUint32(data[callArch:], arch)
	for i, argument := range arguments {
		binary.BigEndian.PutUint32(data[lowerHalf(uint32(i)):], argument)
	}
	return machine.Run(data)
}
