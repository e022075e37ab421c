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

// childInfo is Linux's siginfo_t for a child that has ended.
type childInfo struct {
	_   [4]int32
	pid int32
	_   [108]byte
}

// reapOrphans reaps children that this program did not start: a container's first process becomes
// the parent of orphans, such as of kubectl exec. It leaves QEMU to proc.Wait. Once QEMU has ended,
// this program ends too, so reapOrphans stops there.
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

// endedChild returns the process ID of a zombie child, 0 if there is none. It does not reap the
// child.
func endedChild() int {
	var info childInfo
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), //nolint:gosec // a system call
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(info.pid)
}
