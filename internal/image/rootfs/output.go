// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"cloudnative.tw/drover/internal/image/erofs"
)

// Kinds of messages from a conversion in another process. That process sends its writes to the owner of the file, who
// checks each write and its free disk space. A message has its kind, an offset and a size. After kindWrite follow size
// bytes of data.
const (
	kindWrite    = 'w'
	kindTruncate = 't'
	kindClear    = 'c'

	headSize = 1 + 8 + 8
	// maxChunk is how many bytes a write may have.
	maxChunk = 1 << 20
)

// SentOutput sends the changes of a file to Receive.
type SentOutput struct{ To io.Writer }

var _ erofs.File = SentOutput{}

// WriteAt implements io.WriterAt.
func (o SentOutput) WriteAt(p []byte, offset int64) (written int, err error) {
	for written < len(p) {
		part := p[written:min(len(p), written+maxChunk)]
		if err := o.sendChange(kindWrite, offset+int64(written), int64(len(part))); err != nil {
			return written, err
		}
		n, err := o.To.Write(part)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// Truncate implements erofs.File.
func (o SentOutput) Truncate(size int64) error { return o.sendChange(kindTruncate, 0, size) }

// Clear implements erofs.File.
func (o SentOutput) Clear(offset, size int64) error { return o.sendChange(kindClear, offset, size) }

func (o SentOutput) sendChange(kind byte, offset, size int64) error {
	head := binary.BigEndian.AppendUint64([]byte{kind}, uint64(offset))     //nolint:gosec // offsets are not negative
	_, err := o.To.Write(binary.BigEndian.AppendUint64(head, uint64(size))) //nolint:gosec // neither are sizes
	return err
}

// WriteError means that a change of the output failed.
type WriteError struct{ Err error }

// Error implements error.
func (e *WriteError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Err }

// Receive applies the changes from a SentOutput to file until the end of the stream. It rejects changes beyond maxSize.
// The error is a WriteError if a change fails, and io.ErrUnexpectedEOF if the stream ends within a message. Other errors
// describe an invalid message.
func Receive(reader io.Reader, file erofs.File, maxSize int64) error {
	head, chunk := make([]byte, headSize), make([]byte, maxChunk)
	for {
		if _, err := io.ReadFull(reader, head); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		offset, size := int64(binary.BigEndian.Uint64(head[1:])), int64(binary.BigEndian.Uint64(head[9:])) //nolint:gosec // checked below
		isTooLong := head[0] == kindWrite && size > maxChunk
		if offset < 0 || offset > maxSize || size < 0 || size > maxSize-offset || isTooLong {
			return fmt.Errorf("it changes %d bytes at %d of its output, which may have %d", size, offset, maxSize)
		}
		if head[0] == kindWrite {
			if _, err := io.ReadFull(reader, chunk[:size]); errors.Is(err, io.EOF) { // the data is missing
				return io.ErrUnexpectedEOF
			} else if err != nil {
				return err
			}
		}
		if err := applyChange(file, head[0], offset, size, chunk); err != nil {
			return err
		}
	}
}

func applyChange(file erofs.File, kind byte, offset, size int64, chunk []byte) (err error) {
	switch kind {
	case kindWrite:
		_, err = file.WriteAt(chunk[:size], offset)
	case kindTruncate:
		err = file.Truncate(size)
	case kindClear:
		err = file.Clear(offset, size)
	default:
		return fmt.Errorf("it asks for an unknown change of its output, %q", kind)
	}
	if err != nil {
		return &WriteError{err}
	}
	return nil
}
