// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routes asks the kernel where it would send packets. Start with Kernel.
package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel asks the kernel of this host, by a socket of routing messages (rtnetlink(7)).
type Kernel struct {
	mu sync.Mutex
	fd int
	// sequence numbers the questions.
	sequence uint32
}

// answerWithin is how long the kernel may take.
const answerWithin = time.Second

// Open opens the socket.
func Open() (*Kernel, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routes: %w", err)
	}
	within := unix.NsecToTimeval(answerWithin.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &within); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Kernel{fd: fd}, nil
}

// Close closes the socket.
func (r *Kernel) Close() error { return unix.Close(r.fd) }

// CheckUnicast implements edge.RouteTable. A route of any other type leads to the host itself, to many hosts, or nowhere.
func (r *Kernel) CheckUnicast(to netip.Addr) error {
	kind, err := r.typeOf(to)
	switch {
	case err != nil:
		return err
	case kind != unix.RTN_UNICAST:
		return fmt.Errorf("the route to %s is of type %d", to, kind)
	}
	return nil
}

// typeOf returns the type of the route to an IPv4 address.
func (r *Kernel) typeOf(to netip.Addr) (byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sequence++
	const addressBytes = 4
	question := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+addressBytes)
	binary.NativeEndian.PutUint32(question, uint32(len(question))) //nolint:gosec // small
	binary.NativeEndian.PutUint16(question[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(question[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(question[8:], r.sequence)
	route := question[unix.SizeofNlMsghdr:]
	route[0], route[1] = unix.AF_INET, 8*addressBytes
	attribute := route[unix.SizeofRtMsg:]
	binary.NativeEndian.PutUint16(attribute, unix.SizeofRtAttr+addressBytes)
	binary.NativeEndian.PutUint16(attribute[2:], unix.RTA_DST)
	copy(attribute[unix.SizeofRtAttr:], to.AsSlice())
	if err := unix.Sendto(r.fd, question, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("asking the kernel for a route: %w", err)
	}
	return r.readType()
}

// readType reads the answer to the last question. Those to questions that were given up are skipped.
func (r *Kernel) readType() (byte, error) {
	answer := make([]byte, 4<<10)
	for {
		n, _, err := unix.Recvfrom(r.fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("asking the kernel for a route: %w", err)
		}
		if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint32(answer[8:]) != r.sequence {
			continue
		}
		body := answer[unix.SizeofNlMsghdr:n]
		switch binary.NativeEndian.Uint16(answer[4:]) {
		case unix.NLMSG_ERROR:
			return 0, fmt.Errorf("asking the kernel for a route: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(body)))) //nolint:gosec // an errno
		case unix.RTM_NEWROUTE:
			if len(body) >= unix.SizeofRtMsg {
				return body[7], nil // rtm_type
			}
		}
	}
}
