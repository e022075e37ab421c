// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// TestDocsOfSockets compares the sockets of each program in docs/confinement.md with the answers
// of its filters.
func TestDocsOfSockets(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/confinement.md")
	assert.NoError(t, err)
	type filter = func(arch, number uint32, arguments ...uint32) int
	qemu := []filter{newFilter(t, makeFilter(Policy{}))}
	supervisor := []filter{newFilter(t, makeFilter(Policy{MayConnect: true})), newFilter(t, makeStartFilter(7, nil))}
	broker := []filter{newFilter(t, makeFilter(Policy{MayPair: true})), newFilter(t, makeStartFilter(7, []uintptr{unix.SYS_SOCKETPAIR}))}
	mayCall := func(filters []filter, call uint32, arguments ...uint32) string {
		for _, answer := range filters {
			if answer(auditArch, call, arguments...) != unix.SECCOMP_RET_ALLOW {
				return "no"
			}
		}
		return "yes"
	}
	for _, c := range []struct {
		what      string
		call      uint32
		arguments []uint32
	}{
		{"make a socket for TCP, UDP or pings", unix.SYS_SOCKET, []uint32{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}},
		{"make a socket for routes", unix.SYS_SOCKET, []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		{"make a unix socket", unix.SYS_SOCKET, []uint32{unix.AF_UNIX, unix.SOCK_STREAM}},
		{"make a pair of unix sockets", unix.SYS_SOCKETPAIR, []uint32{unix.AF_UNIX, unix.SOCK_STREAM}},
		{"connect a socket", unix.SYS_CONNECT, []uint32{3}},
		{"bind a socket to an address", unix.SYS_BIND, []uint32{3}},
	} {
		row := fmt.Sprintf("| %s | %s | %s | %s |", c.what, mayCall(qemu, c.call, c.arguments...), mayCall(supervisor, c.call, c.arguments...), mayCall(broker, c.call, c.arguments...))
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("docs/confinement.md lacks the row %s", row)
		}
	}
	_, files, _ := strings.Cut(string(page), "| files by path | ")
	files, _, _ = strings.Cut(files, " |\n")
	for _, path := range systemFiles {
		isLibrary := strings.Contains(path, "/lib") || strings.HasPrefix(path, "/etc/ld.so")
		if !isLibrary && !strings.Contains(files, "`"+path+"`") {
			t.Errorf("docs/confinement.md does not say that QEMU reads %s", path)
		}
	}
}
