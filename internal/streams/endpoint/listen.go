// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// goneAfter is after how long without an answer by TCP a client counts as gone. It applies to idle
// connections, such as the connection of a log without new lines, and to connections with unacknowledged data.
const goneAfter = time.Minute

// listenConfig returns a configuration that ends the connection of a client that has disappeared.
func listenConfig() *net.ListenConfig {
	const probes = 4
	return &net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: goneAfter / probes, Interval: goneAfter / probes, Count: probes},
		Control: func(_, _ string, c syscall.RawConn) (err error) { // accepted connections inherit the option
			controlErr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(goneAfter.Milliseconds()))
			})
			if controlErr != nil {
				return controlErr
			}
			return err
		},
	}
}
