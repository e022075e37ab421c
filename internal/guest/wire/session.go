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

// Timeouts of a session. They are long, since an emulated guest on a busy host is slow.
const (
	openWithin  = 30 * time.Second
	writeWithin = 30 * time.Second
	closeWithin = 30 * time.Second
)

// Config returns yamux's settings for both ends. It disables pings, since the end of the host's
// process closes the connection.
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

// CoalescingWriter writes the header and the payload of a yamux frame in one call. yamux writes them
// separately, and each write takes a buffer of the virtio queue.
type CoalescingWriter struct {
	W      io.Writer
	header []byte
}

// Write writes p. It keeps back a header until the next call brings the payload.
func (w *CoalescingWriter) Write(p []byte) (int, error) {
	if w.header == nil && len(p) == muxHeader && p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0 {
		w.header = append(make([]byte, 0, muxHeader+MaxData), p...)
		return len(p), nil
	}
	if w.header == nil {
		return w.W.Write(p)
	}
	frame := slices.Concat(w.header, p)
	w.header = nil
	if _, err := w.W.Write(frame); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Filter passes on yamux frames of a guest. It fails at a ping, and at a frame that opens a stream,
// which a guest never has to send: yamux would start a goroutine for each ping, and keep each stream
// that a hostile guest opens.
type Filter struct {
	R io.Reader
	// header is the rest of a frame's header that was not passed on yet. payloadLeft is how many bytes of
	// the payload follow.
	header      []byte
	payloadLeft uint32
	err         error
}

// ErrSession means that the guest has sent an invalid yamux frame.
var ErrSession = fmt.Errorf("%w of the session", ErrFrame)

// Read implements io.Reader.
func (f *Filter) Read(p []byte) (int, error) {
	switch {
	case f.err != nil:
		return 0, f.err
	case len(f.header) > 0:
		n := copy(p, f.header)
		f.header = f.header[n:]
		return n, nil
	case f.payloadLeft > 0:
		n, err := f.R.Read(p[:min(len(p), int(f.payloadLeft))])
		f.payloadLeft -= uint32(n) //nolint:gosec // at most payloadLeft
		return n, err
	}
	header := make([]byte, muxHeader)
	if _, f.err = io.ReadFull(f.R, header); f.err != nil {
		return 0, f.err
	}
	if f.err = f.checkHeader(header); f.err != nil {
		return 0, f.err
	}
	f.header = header
	return f.Read(p)
}

func (f *Filter) checkHeader(header []byte) error {
	flags, length := binary.BigEndian.Uint16(header[2:]), binary.BigEndian.Uint32(header[8:])
	kind := header[1]
	switch {
	case header[0] != muxVersion || (kind != muxData && kind != muxWindow && kind != muxGoAway):
		return fmt.Errorf("%w: version %d, type %d", ErrSession, header[0], kind)
	case flags&flagSYN != 0:
		return fmt.Errorf("%w: the guest opens a stream", ErrSession)
	case kind != muxGoAway && length > maxMux:
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrSession, length, maxMux)
	}
	if kind == muxData {
		f.payloadLeft = length
	}
	return nil
}
