// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/yamux"
)

// Waits of a session. The guest of an emulated machine on a busy host is slow.
const (
	openWithin  = 30 * time.Second
	writeWithin = 30 * time.Second
	closeWithin = 30 * time.Second
)

// Config returns yamux's settings, which both ends have to share. Neither end pings: a host that is
// gone has closed its connection.
func Config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.AcceptBacklog = MaxStreams
	c.StreamOpenTimeout, c.StreamCloseTimeout, c.ConnectionWriteTimeout = openWithin, closeWithin, writeWithin
	c.LogOutput = io.Discard
	return c
}

// The header of yamux's frames: version, type, flags (2 bytes), stream (4), length (4).
const (
	muxHeader = 12

	muxVersion                         = 0
	muxData, muxWindow, muxPing        = 0, 1, 2
	muxGoAway                          = 3
	flagSYN                     uint16 = 1
	// maxMux is yamux's window, and the longest payload.
	maxMux = 256 << 10
)

// Joined writes a header together with its payload, which yamux does not: each write is one message
// of the virtio queue.
type Joined struct {
	W      io.Writer
	header []byte
}

// Write writes p, or keeps a header whose payload comes with the next call.
func (j *Joined) Write(p []byte) (int, error) {
	if j.header == nil && len(p) == muxHeader && p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0 {
		j.header = append(make([]byte, 0, muxHeader+MaxData), p...)
		return len(p), nil
	}
	if j.header == nil {
		return j.W.Write(p)
	}
	joined := slices.Concat(j.header, p)
	j.header = nil
	if _, err := j.W.Write(joined); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Filter passes on the frames of a guest that has only to answer. It ends the stream at a frame that
// no such guest sends: yamux would start a goroutine for each ping, and keep each stream that a
// guest opens.
type Filter struct {
	R io.Reader
	// header is the part of a frame's header that has not been passed on, left how much of the
	// payload is to come.
	header []byte
	left   uint32
	err    error
}

// ErrSession means that the guest has sent data that no session has.
var ErrSession = fmt.Errorf("%w of the session", ErrFrame)

// Read reads what has been checked.
func (f *Filter) Read(p []byte) (int, error) {
	switch {
	case f.err != nil:
		return 0, f.err
	case len(f.header) > 0:
		n := copy(p, f.header)
		f.header = f.header[n:]
		return n, nil
	case f.left > 0:
		n, err := f.R.Read(p[:min(len(p), int(f.left))])
		f.left -= uint32(n) //nolint:gosec // at most left
		return n, err
	}
	header := make([]byte, muxHeader)
	if _, f.err = io.ReadFull(f.R, header); f.err != nil {
		return 0, f.err
	}
	if f.err = f.check(header); f.err != nil {
		return 0, f.err
	}
	f.header = header
	return f.Read(p)
}

func (f *Filter) check(header []byte) error {
	flags, length := binary.BigEndian.Uint16(header[2:]), binary.BigEndian.Uint32(header[8:])
	kind := header[1]
	switch {
	case header[0] != muxVersion || kind != muxData && kind != muxWindow && kind != muxGoAway:
		return fmt.Errorf("%w: version %d, type %d", ErrSession, header[0], kind)
	case flags&flagSYN != 0:
		return fmt.Errorf("%w: the guest opens a stream", ErrSession)
	case kind != muxGoAway && length > maxMux:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrSession, length, maxMux)
	}
	if kind == muxData {
		f.left = length
	}
	return nil
}
