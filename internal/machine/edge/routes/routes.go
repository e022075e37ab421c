// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package routes queries the kernel's routes. Start with Kernel.
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

// Kernel queries the routes of this host's kernel over a netlink socket (rtnetlink(7)).
type Kernel struct {
	mu       sync.Mutex
	fd       int
	sequence uint32 // of the last query
}

// answerWithin is how long the kernel may take to answer a query.
const answerWithin = time.Second

// Open returns a Kernel with a new socket.
func Open() (*Kernel, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for the kernel's routes: %w", err)
	}
	timeout := unix.NsecToTimeval(answerWithin.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Kernel{fd: fd}, nil
}

// Close closes the socket.
func (r *Kernel) Close() error { return unix.Close(r.fd) }

// CheckUnicast implements edge.RouteTable. It fails unless the route is unicast: other types lead to the host itself, to
// several hosts, or nowhere.
func (r *Kernel) CheckUnicast(destination netip.Addr) error {
	routeType, err := r.queryRouteType(destination)
	switch {
	case err != nil:
		return err
	case routeType != unix.RTN_UNICAST:
		return fmt.Errorf("the kernel's route to %s has type %d, and is not unicast", destination, routeType)
	}
	return nil
}

// queryRouteType returns the type of the route to an IPv4 address, such as RTN_UNICAST.
func (r *Kernel) queryRouteType(destination netip.Addr) (byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sequence++
	const addressBytes = 4
	query := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+addressBytes)
	binary.NativeEndian.PutUint32(query, uint32(len(query))) //nolint:gosec // small
	binary.NativeEndian.PutUint16(query[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(query[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(query[8:], r.sequence)
	route := query[unix.SizeofNlMsghdr:]
	route[0], route[1] = unix.AF_INET, 8*addressBytes
	attribute := route[unix.SizeofRtMsg:]
	binary.NativeEndian.PutUint16(attribute, unix.SizeofRtAttr+addressBytes)
	binary.NativeEndian.PutUint16(attribute[2:], unix.RTA_DST)
	copy(attribute[unix.SizeofRtAttr:], destination.AsSlice())
	if err := unix.Sendto(r.fd, query, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("querying the kernel's route to %s: %w", destination, err)
	}
	routeType, err := r.readRouteType()
	if err != nil {
		return 0, fmt.Errorf("querying the kernel's route to %s: %w", destination, err)
	}
	return routeType, nil
}

// readRouteType reads the answer to the last query. It skips late answers to queries that timed out.
func (r *Kernel) readRouteType() (byte, error) {
	answer := make([]byte, 4<<10)
	for {
		n, _, err := unix.Recvfrom(r.fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint32(answer[8:]) != r.sequence {
			continue
		}
		body := answer[unix.SizeofNlMsghdr:n]
		switch binary.NativeEndian.Uint16(answer[4:]) {
		case unix.NLMSG_ERROR:
			return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(body))) //nolint:gosec // an errno
		case unix.RTM_NEWROUTE:
			if len(body) >= unix.SizeofRtMsg {
				return body[7], nil // rtm_type
			}
		}
	}
}
