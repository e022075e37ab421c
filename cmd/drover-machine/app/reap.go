// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childInfo is siginfo_t of Linux for an ended child.
type childInfo struct {
	_   [4]int32
	pid int32
	_   [108]byte
}

// reapOrphans waits for children that this program did not start: a container's first process
// gets those whose parents have ended, as of kubectl exec. That of QEMU is left to the waiter
// that the program has for it: once it has ended, so does the program.
func reapOrphans(ctx context.Context, qemu int) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		for pid := endedChild(); pid != 0 && pid != qemu; pid = endedChild() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
	}
}

// endedChild returns a child that has ended and that no caller has waited for, 0 for none. It
// leaves the child as it is.
func endedChild() int {
	var info childInfo
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), //nolint:gosec // a system call
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(info.pid)
}
