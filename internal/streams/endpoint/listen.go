// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// goneAfter is how long a client may not answer at the level of TCP. It ends connections that
// are idle, such as the one of a log without new lines, and those to which something is sent.
const goneAfter = time.Minute

// listenConfig makes connections end whose client is gone without a word.
func listenConfig() *net.ListenConfig {
	const probes = 4
	return &net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: goneAfter / probes, Interval: goneAfter / probes, Count: probes},
		Control: func(_, _ string, c syscall.RawConn) (err error) { // connections inherit it
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
