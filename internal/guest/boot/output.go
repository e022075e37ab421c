// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"errors"
	"io"
	"os"

	"cloudnative.tw/drover/internal/guest/users"
)

// chunk is how much output is passed on at a time.
const chunk = 64 << 10

// output is a stream of the entrypoint: a pipe whose content is passed on to a port. The port itself could be opened only
// once, and programs open /dev/stdout.
type output struct {
	port, pipe *os.File
}

// openPipe makes the pipe, and returns the end of the entrypoint. A program of a user can open it by /dev/stdout.
func (o *output) openPipe(u users.User) (theirs *os.File, err error) {
	if o.pipe, theirs, err = os.Pipe(); err != nil {
		return nil, err
	}
	return theirs, theirs.Chown(int(u.UID), int(u.GID))
}

// copyAll passes the output on until all that write to it have ended.
func (o *output) copyAll() {
	buffer := make([]byte, chunk)
	for {
		n, err := o.pipe.Read(buffer)
		if n > 0 {
			_, failed := o.port.Write(buffer[:n])
			warn(failed)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				warn(err)
			}
			return
		}
	}
}
