// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proc finds, measures and ends processes of this host. It reads /proc.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// KillWithin is how long a process may take to end after SIGKILL.
	KillWithin = 5 * time.Second
	// PollEvery is the interval between two checks of a process.
	PollEvery = 5 * time.Millisecond
)

// IDs returns the IDs of all processes.
func IDs() []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Path returns the path of a process's file in /proc.
func Path(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// HasOption reports whether the command line of a process has an option and, as the next
// argument, its value.
func HasOption(pid int, option, value string) bool {
	line, err := os.ReadFile(Path(pid, "cmdline"))
	return err == nil && bytes.Contains(line, []byte("\x00"+option+"\x00"+value+"\x00"))
}

// UserID returns the effective user ID of a process, -1 if it is gone.
func UserID(pid int) int64 {
	var info unix.Stat_t
	if err := unix.Stat(Path(pid, ""), &info); err != nil {
		return -1
	}
	return int64(info.Uid)
}

// Boot returns the kernel's ID of this boot of the host.
var Boot = sync.OnceValue(func() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
})

// UserOf returns the effective user and group ID of a process.
func UserOf(pid int) (user, group uint32, err error) {
	text, err := os.ReadFile(Path(pid, "status"))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "Uid: %d %d", new(uint32), &user); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(line, "Gid: %d %d", new(uint32), &group); err == nil {
			return user, group, nil
		}
	}
	return 0, 0, fmt.Errorf("%s lacks the lines Uid and Gid", Path(pid, "status"))
}

// Kill kills a process if isTarget accepts it, and waits for its end. It does nothing for a process ID of 0. It
// opens a pidfd first: if the ID is used again meanwhile, the new process gets no signal.
func Kill(ctx context.Context, pid int, isTarget func(pid int) bool) error {
	if pid == 0 {
		return nil
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(handle) }()
	if !isTarget(pid) {
		return nil
	}
	err = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	return waitEnded(ctx, handle)
}

// waitEnded waits for a process to end. A pidfd becomes readable once all threads of the
// process have ended.
func waitEnded(ctx context.Context, handle int) error {
	ctx, cancel := context.WithTimeout(ctx, KillWithin)
	defer cancel()
	fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}} //nolint:gosec // a descriptor is small
	for {
		n, err := unix.Poll(fds, int(PollEvery.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("the process still runs after SIGKILL: %w", ctx.Err())
		}
	}
}

// Wait waits for a program to end, like cmd.Wait. But cmd.Wait blocks a thread as long as the
// program runs, and Wait only after the runtime's poller has reported the end.
func Wait(cmd *exec.Cmd) error {
	if fd, err := unix.PidfdOpen(cmd.Process.Pid, unix.PIDFD_NONBLOCK); err == nil { // needs Linux 5.10
		handle := os.NewFile(uintptr(fd), "pidfd")
		defer func() { _ = handle.Close() }()
		if conn, err := handle.SyscallConn(); err == nil {
			_ = conn.Read(hasEnded)
		}
	}
	return cmd.Wait()
}

// hasEnded reports whether the process of a pidfd has ended. It reports true if poll(2) fails.
func hasEnded(handle uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor is small
	return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
}

// Pause waits for d, and reports whether ctx is still active.
func Pause(ctx context.Context, d time.Duration) bool {
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-timer.Done()
	return ctx.Err() == nil
}
