// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Port is a virtio-serial port that connections of the host come to and leave.
type Port struct {
	fd, poll int
	// isAway is set once Read has said that the host has no connection.
	isAway bool
}

// OpenDuplex opens the port of a name.
func OpenDuplex(name string) (*Port, error) {
	path, err := FindPort(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the port %s: %w", name, err)
	}
	return NewPort(fd)
}

// NewPort returns the port of a descriptor that does not block.
func NewPort(fd int) (*Port, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	// Without a connection the port always has a hang-up to report, so only changes are.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)} //nolint:gosec // a descriptor
	return &Port{fd: fd, poll: poll}, unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Fd returns the descriptor.
func (p *Port) Fd() uintptr { return uintptr(p.fd) } //nolint:gosec // a descriptor

// Read reads what has come. It returns io.EOF where the host has no connection; the next call then
// waits for one.
func (p *Port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case n > 0:
			p.isAway = false
			return n, nil
		case err == nil && !p.isAway:
			p.isAway = true
			return 0, io.EOF
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return 0, err
		}
		if err := p.wait(); err != nil {
			return 0, err
		}
	}
}

// recheck is after how many milliseconds a port is looked at without an event.
const recheck = 10_000

// wait waits until something has changed.
func (p *Port) wait() error {
	var events [1]unix.EpollEvent
	if _, err := unix.EpollWait(p.poll, events[:], recheck); err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

// Write writes all of b. It waits while a connection of the host takes nothing, and fails where there is none.
func (p *Port) Write(b []byte) (written int, err error) {
	for written < len(b) {
		n, err := unix.Write(p.fd, b[written:])
		switch {
		case err == nil:
			written += n
		case errors.Is(err, unix.EAGAIN):
			poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLOUT}} //nolint:gosec // a descriptor
			if _, err := unix.Poll(poll, recheck); err != nil && !errors.Is(err, unix.EINTR) {
				return written, err
			}
			if poll[0].Revents&unix.POLLHUP != 0 {
				return written, io.ErrClosedPipe
			}
		case !errors.Is(err, unix.EINTR):
			return written, err
		}
	}
	return written, nil
}
