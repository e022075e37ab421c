// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// TestFilter checks what the filter answers to system calls.
func TestFilter(t *testing.T) {
	t.Parallel()
	filter := newFilter(t, makeFilter(Rights{}))
	const (
		allowed = unix.SECCOMP_RET_ALLOW
		denied  = unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
		unknown = unix.SECCOMP_RET_ERRNO | int(unix.ENOSYS)
	)
	type call struct {
		arch, number uint32
		arguments    [6]uint32
	}
	for name, c := range map[string]struct {
		call call
		want int
	}{
		"read":                  {call{auditArch, unix.SYS_READ, [6]uint32{3}}, allowed},
		"execve":                {call{auditArch, unix.SYS_EXECVE, [6]uint32{}}, allowed},
		"another architecture":  {call{unix.AUDIT_ARCH_I386, unix.SYS_READ, [6]uint32{}}, unknown},
		"clone3":                {call{auditArch, unix.SYS_CLONE3, [6]uint32{}}, unknown},
		"a thread":              {call{auditArch, unix.SYS_CLONE, [6]uint32{unix.CLONE_VM | unix.CLONE_THREAD}}, allowed},
		"a user namespace":      {call{auditArch, unix.SYS_CLONE, [6]uint32{unix.CLONE_NEWUSER}}, denied},
		"a network namespace":   {call{auditArch, unix.SYS_CLONE, [6]uint32{unix.CLONE_VM | unix.CLONE_NEWNET}}, denied},
		"unshare":               {call{auditArch, unix.SYS_UNSHARE, [6]uint32{}}, denied},
		"own limits":            {call{auditArch, unix.SYS_PRLIMIT64, [6]uint32{0}}, allowed},
		"limits of another":     {call{auditArch, unix.SYS_PRLIMIT64, [6]uint32{1}}, denied},
		"a pair of sockets":     {call{auditArch, unix.SYS_SOCKETPAIR, [6]uint32{unix.AF_UNIX}}, denied},
		"accept":                {call{auditArch, unix.SYS_ACCEPT4, [6]uint32{unix.IPPROTO_TCP}}, allowed},
		"an attribute":          {call{auditArch, unix.SYS_SETXATTR, [6]uint32{}}, denied},
		"a mode":                {call{auditArch, unix.SYS_FCHMODAT, [6]uint32{}}, denied},
		"an owner":              {call{auditArch, unix.SYS_FCHOWNAT, [6]uint32{}}, denied},
		"a time":                {call{auditArch, unix.SYS_UTIMENSAT, [6]uint32{}}, denied},
		"memory of another":     {call{auditArch, unix.SYS_PROCESS_VM_READV, [6]uint32{}}, denied},
		"the last of the table": {call{auditArch, uint32(deniedCalls[len(deniedCalls)-1]), [6]uint32{}}, denied}, //nolint:gosec // small
	} {
		assert.Equal(t, name, filter(c.call.arch, c.call.number, c.call.arguments[:]...), c.want)
	}
}

// TestSockets checks which sockets a program may have that connects to others, and that another has none.
func TestSockets(t *testing.T) {
	t.Parallel()
	none, connecting := newFilter(t, makeFilter(Rights{})), newFilter(t, makeFilter(Rights{MayConnect: true}))
	const allowed, denied = unix.SECCOMP_RET_ALLOW, unix.SECCOMP_RET_ERRNO | int(unix.EPERM)
	for name, c := range map[string]struct {
		arguments []uint32
		want      int
	}{
		"TCP":                  {[]uint32{unix.AF_INET, unix.SOCK_STREAM, 0}, allowed},
		"TCP by its number":    {[]uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, allowed},
		"UDP of IPv6":          {[]uint32{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allowed},
		"ICMP":                 {[]uint32{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, allowed},
		"ICMP of IPv6":         {[]uint32{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, allowed},
		"MPTCP":                {[]uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, denied},
		"SCTP":                 {[]uint32{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, denied},
		"a unix socket":        {[]uint32{unix.AF_UNIX, unix.SOCK_STREAM, 0}, denied},
		"a packet socket":      {[]uint32{unix.AF_PACKET, unix.SOCK_RAW, 0}, denied},
		"a socket of the host": {[]uint32{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, denied},
		"routes":               {[]uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allowed},
		"the firewall":         {[]uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, denied},
	} {
		assert.Equal(t, name, connecting(auditArch, unix.SYS_SOCKET, c.arguments...), c.want)
		assert.Equal(t, name+", for a program without a network", none(auditArch, unix.SYS_SOCKET, c.arguments...), denied)
	}
	for name, c := range map[string]struct{ got, want int }{
		"connect": {connecting(auditArch, unix.SYS_CONNECT, 3), allowed}, "bind": {connecting(auditArch, unix.SYS_BIND, 3), denied},
		"listen": {connecting(auditArch, unix.SYS_LISTEN, 3), denied}, "connect without a network": {none(auditArch, unix.SYS_CONNECT, 3), denied},
		"listen without an effect": {none(auditArch, unix.SYS_LISTEN, 3), unix.SECCOMP_RET_ERRNO}, "bind without a network": {none(auditArch, unix.SYS_BIND, 3), denied},
	} {
		assert.Equal(t, name, c.got, c.want)
	}
}

// newFilter returns what answers a system call by a filter.
func newFilter(t *testing.T, program []bpf.Instruction) func(arch, number uint32, arguments ...uint32) int {
	t.Helper()
	return func(arch, number uint32, arguments ...uint32) int {
		got, err := runFilter(program, arch, number, arguments...)
		assert.NoError(t, err)
		return got
	}
}

// TestStartFilter checks that the filter of DenyStarts is for this architecture alone, and allows what it does not
// name.
func TestStartFilter(t *testing.T) {
	t.Parallel()
	filter := newFilter(t, makeStartFilter(7, Rights{}))
	for name, c := range map[string]struct{ got, want int }{
		"another architecture": {filter(unix.AUDIT_ARCH_I386, 11), unix.SECCOMP_RET_ERRNO | int(unix.ENOSYS)},
		"accept":               {filter(auditArch, unix.SYS_ACCEPT4, 3), unix.SECCOMP_RET_ALLOW},
		"a new descriptor":     {filter(auditArch, unix.SYS_FCNTL, 3, unix.F_DUPFD_CLOEXEC), unix.SECCOMP_RET_ALLOW},
		"a signal by SIGIO":    {filter(auditArch, unix.SYS_FCNTL, 3, unix.F_SETOWN), unix.SECCOMP_RET_ERRNO | int(unix.EPERM)},
	} {
		assert.Equal(t, name, c.got, c.want)
	}
}
