// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Kind is the kind of a frame.
type Kind byte

// Kinds of frames.
const (
	FrameRequest  Kind = 1 + iota // a Request, first
	FrameData                     // input, or a part of a tar stream
	FrameEnd                      // the end of the input or of the tar stream
	FrameResize                   // a Size
	FrameStdout                   // output
	FrameStderr                   // output
	FrameResponse                 // a Response, last
	FrameTaken                    // how many bytes of the input the program has read since the last one (4 bytes)
	frameKinds
)

// ErrFrame means that the peer has sent an invalid frame.
var ErrFrame = errors.New("invalid frame")

// headerLength is the length of a frame's header: the kind, and the length of the payload.
const headerLength = 5

// limits has the longest payload of each kind.
var limits = [frameKinds]int{
	FrameRequest: MaxRequest, FrameData: MaxData, FrameEnd: 0, FrameResize: 64,
	FrameStdout: MaxData, FrameStderr: MaxData, FrameResponse: MaxResponse, FrameTaken: 4,
}

// WriteFrame writes a frame with one call, so that it is one write on the wire.
func WriteFrame(w io.Writer, kind Kind, payload []byte) error {
	if len(payload) > limits[kind] {
		return fmt.Errorf("%w: kind %d has %d bytes, at most %d are allowed", ErrFrame, kind, len(payload), limits[kind])
	}
	frame := make([]byte, headerLength, headerLength+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload))) //nolint:gosec // at most MaxRequest
	_, err := w.Write(append(frame, payload...))
	return err
}

// WriteJSON writes a frame whose payload is a value as JSON.
func WriteJSON(w io.Writer, kind Kind, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return WriteFrame(w, kind, text)
}

// Reader reads frames.
type Reader struct {
	R       io.Reader
	payload []byte
}

// Next returns the next frame. The payload is valid until the next call. Next returns io.EOF if the
// stream ends between two frames.
func (r *Reader) Next() (Kind, []byte, error) {
	var header [headerLength]byte
	if _, err := io.ReadFull(r.R, header[:]); err != nil {
		return 0, nil, err
	}
	kind, length := Kind(header[0]), binary.BigEndian.Uint32(header[1:])
	if kind == 0 || kind >= frameKinds {
		return 0, nil, fmt.Errorf("%w: kind %d is unknown", ErrFrame, kind)
	}
	if length > uint32(limits[kind]) { //nolint:gosec // at most MaxRequest
		return 0, nil, fmt.Errorf("%w: kind %d has %d bytes, at most %d are allowed", ErrFrame, kind, length, limits[kind])
	}
	if uint32(cap(r.payload)) < length { //nolint:gosec // at most MaxRequest
		r.payload = make([]byte, length)
	}
	r.payload = r.payload[:length]
	if _, err := io.ReadFull(r.R, r.payload); err != nil {
		return 0, nil, fmt.Errorf("%w: kind %d is cut off: %w", ErrFrame, kind, err)
	}
	return kind, r.payload, nil
}
