// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package compression decompresses content while it is read. It detects the format from the
// first bytes. Its memory is bounded even for hostile content. Callers must bound the size
// of the decompressed content.
//
// Start with NewReader.
package compression

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"
)

// MaxMemory bounds the dictionary of xz and the window of zstd: the decompressed bytes that
// are kept for later references. It suffices for xz -9 and zstd -19.
const MaxMemory = 64 << 20

const (
	// bufferSize is how much is read at a time. A read returns less if the source is slow.
	bufferSize = 32 << 10
	// maxFrame disables the library's limit on the decompressed size that the header of a zstd frame declares.
	maxFrame = 1 << 60
)

// XZ is the format of content that is compressed with xz.
const XZ = "xz"

// Error says with a fixed message why content cannot be decompressed. Read errors of the underlying
// reader are returned unchanged, not as an Error.
type Error struct {
	text  string
	cause error
}

func (e *Error) Error() string { return e.text }

func (e *Error) Unwrap() error { return e.cause }

// IsTooMuchMemory reports whether content was rejected since its decompression needs more than
// MaxMemory.
func IsTooMuchMemory(err error) bool {
	return errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, xz.ErrMemlimit)
}

// formats are the known formats, by their first bytes.
var formats = []struct {
	name, magic string
	open        func(io.Reader) (io.Reader, error)
}{
	{"gzip", "\x1f\x8b", openGzip},
	{XZ, "\xfd7zXZ\x00", openXZ},
	{"zstd", "\x28\xb5\x2f\xfd", openZstd},
}

func openGzip(reader io.Reader) (io.Reader, error) { return gzip.NewReader(reader) }

func openXZ(reader io.Reader) (io.Reader, error) { return xz.NewReader(reader, MaxMemory) }

func openZstd(reader io.Reader) (io.Reader, error) {
	return zstd.NewReader(reader, zstd.WithDecoderMaxWindow(MaxMemory), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(1))
}

// Reader reads content, and decompresses it if it is compressed. It concatenates consecutive gzip
// members, xz streams and zstd frames. Trailing data of another kind is an error.
type Reader struct {
	// Format is gzip, xz or zstd, and empty if the content is not compressed.
	Format  string
	from    *source
	content io.Reader
}

// NewReader returns a reader of the content of a source.
func NewReader(reader io.Reader) (*Reader, error) {
	r := &Reader{from: &source{Reader: reader}}
	buffered := bufio.NewReaderSize(r.from, bufferSize)
	r.content = buffered
	for _, f := range formats {
		magic, err := buffered.Peek(len(f.magic))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if !bytes.Equal(magic, []byte(f.magic)) {
			continue
		}
		r.Format = f.name
		err = r.guardRead(func() (err error) {
			r.content, err = f.open(buffered)
			return err
		})
		if err != nil {
			return nil, r.explainError(err)
		}
		return r, nil
	}
	return r, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (n int, err error) {
	err = r.guardRead(func() (err error) {
		n, err = r.content.Read(p)
		return err
	})
	return n, r.explainError(err)
}

// Close frees memory. It does not close the source.
func (r *Reader) Close() {
	if decoder, ok := r.content.(*zstd.Decoder); ok {
		decoder.Close()
	}
}

// guardRead converts a panic to an error: hostile content must not end the program through a bug in a
// library.
func (r *Reader) guardRead(read func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = errDecoder
		}
	}()
	return read()
}

var errDecoder = errors.New("the decoder failed")

// explainError returns the read error of the source, if there is one, and otherwise an Error about the content.
func (r *Reader) explainError(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF) && r.from.err == nil, r.Format == "":
		return err
	case r.from.err != nil:
		return r.from.err
	case errors.Is(err, xz.ErrMemlimit):
		return &Error{fmt.Sprintf("the content is compressed by xz with a dictionary of more than %d bytes: compress it with xz -9 or less", MaxMemory), err}
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return &Error{fmt.Sprintf("the content is compressed by zstd with a window of more than %d bytes: compress it without --long and --ultra", MaxMemory), err}
	case errors.Is(err, xz.ErrOptions), errors.Is(err, xz.ErrUnsupportedCheck):
		return &Error{"the content is compressed by xz with options that are not known", err}
	}
	return &Error{fmt.Sprintf("the content is compressed by %s, and damaged or cut off", r.Format), err}
}

// source records the error that the underlying reader has returned.
type source struct {
	io.Reader

	err error // nil if the reader ended with io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}
