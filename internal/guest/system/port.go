// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// Port is a virtio-serial port. The host connects to it and disconnects at any time.
type Port struct {
	fd, poll int
	// isAway is set once Read has said that the host is not connected.
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
	// A port without a connection is always in the state of a hang-up. EPOLLET reports only changes.
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)} //nolint:gosec // a descriptor
	return &Port{fd: fd, poll: poll}, unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &event)
}

// Fd returns the descriptor.
func (p *Port) Fd() uintptr { return uintptr(p.fd) }

// The kernel may learn of a connection of the host only after the first data of the connection. So a port
// that seems to be without a connection is checked for a second before Read and Write say so.
const (
	leftEvery  = 20 * time.Millisecond
	leftRounds = 50
)

// Read reads what has come. It returns io.EOF where the host is not connected; the next call then
// waits for one.
func (p *Port) Read(b []byte) (int, error) {
	for rounds := 0; ; {
		n, err := unix.Read(p.fd, b)
		wait := recheck // for an event: data, or a connection while isAway is set
		switch {
		case n > 0:
			p.isAway = false
			return n, nil
		case err == nil && !p.isAway: // no connection
			if rounds++; rounds > leftRounds {
				p.isAway = true
				return 0, io.EOF
			}
			wait = leftEvery
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return 0, err
		case err != nil:
			rounds = 0
		}
		if err := p.wait(wait); err != nil {
			return 0, err
		}
	}
}

// recheck is how long Read and Write wait for an event before they try again without one.
const recheck = 10 * time.Second

// wait waits until something has changed.
func (p *Port) wait(within time.Duration) error {
	var events [1]unix.EpollEvent
	if _, err := unix.EpollWait(p.poll, events[:], int(within.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

// Write writes all of b. It waits while a connection of the host takes nothing, and fails where there is none.
func (p *Port) Write(b []byte) (written int, err error) {
	for rounds := 0; written < len(b); {
		n, err := unix.Write(p.fd, b[written:])
		switch {
		case err == nil:
			written, rounds = written+n, 0
		case errors.Is(err, unix.EAGAIN):
			poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLOUT}} //nolint:gosec // a descriptor
			if _, err := unix.Poll(poll, int(recheck.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
				return written, err
			}
			if poll[0].Revents&unix.POLLHUP == 0 {
				continue
			}
			if rounds++; rounds > leftRounds {
				return written, io.ErrClosedPipe
			}
			<-time.After(leftEvery)
		case !errors.Is(err, unix.EINTR):
			return written, err
		}
	}
	return written, nil
}
