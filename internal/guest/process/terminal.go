// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
)

// groupTTY is the group of terminals, as devpts is mounted.
const groupTTY = 5

// OpenTerminal returns both ends of a new terminal that belongs to a user.
func OpenTerminal(user users.User) (control, terminal *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("a terminal: /dev/ptmx: %w", err)
	}
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("unlock a terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		_ = unix.Close(fd)
		return nil, nil, fmt.Errorf("open a terminal: %w", errno)
	}
	if err = unix.Fchown(int(peer), int(user.UID), groupTTY); err != nil {
		_, _ = unix.Close(fd), unix.Close(int(peer))
		return nil, nil, fmt.Errorf("give a terminal to its user: %w", err)
	}
	return os.NewFile(uintptr(fd), "ptmx"), os.NewFile(peer, "tty"), nil
}

// SetSize sets the size of a terminal. One of 0 stays as it is.
func SetSize(control *os.File, size wire.Size) error {
	if size.Rows == 0 || size.Columns == 0 {
		return nil
	}
	raw, err := control.SyscallConn() // control.Fd would make its reads uninterruptible
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
	return errors.Join(failed, err)
}
