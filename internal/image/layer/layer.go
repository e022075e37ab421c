// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layer reads the layers of container images, which are tar archives: plain, or
// compressed with gzip or zstd.
//
// Start with Limits.ReadEntries.
package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"

	"cloudnative.tw/drover/internal/image/compression"
)

const (
	// Whiteout is the prefix of entries that remove or hide files of the layers below.
	Whiteout = ".wh."
	// Opaque is the name of an entry that hides all files of the layers below in its folder.
	Opaque = Whiteout + Whiteout + ".opq"
	// MaxCount is how many layers an image may have, as in container engines.
	MaxCount = 127
)

// TooLargeError means that the layers of an image exceed a limit.
type TooLargeError struct{ Limit int64 }

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the layers of the image have more than %d bytes", e.Limit)
}

// Limits limits the compressed and the decompressed bytes of all layers of an image. It needs
// both, since a small amount of either may have an endless amount of the other.
type Limits struct{ compressed, content byteLimit }

// NewLimits returns Limits of limit bytes each.
func NewLimits(limit int64) *Limits {
	return &Limits{compressed: byteLimit{limit, limit}, content: byteLimit{limit, limit}}
}

// ReadEntries calls visit for each entry of a layer. It reads the blob to its end, since a
// wrong digest shows only there.
func (l *Limits) ReadEntries(blob io.Reader, visit func(entry *tar.Header, content io.Reader) error) error {
	blob = &limitedReader{blob, &l.compressed}
	decompressed, err := compression.NewReader(blob)
	if err != nil {
		return err
	}
	defer decompressed.Close()
	if decompressed.Format == compression.XZ {
		return errors.New("a layer is compressed by xz: it may be by gzip or zstd")
	}
	content := &limitedReader{decompressed, &l.content}
	if err := visitEntries(tar.NewReader(content), visit); err != nil {
		return err
	}
	// The archive ends before the blob.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, blob)
	return err
}

func visitEntries(files *tar.Reader, visit func(entry *tar.Header, content io.Reader) error) error {
	for {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = visit(entry, files)
		}
		if err != nil {
			return err
		}
	}
}

// IsSparse reports whether an entry has holes. They cost nothing to send, but may be much to
// write.
func IsSparse(entry *tar.Header) bool {
	for key := range entry.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return entry.Typeflag == tar.TypeGNUSparse
}

// byteLimit is a limit, and how many bytes of it remain.
type byteLimit struct{ remaining, limit int64 }

// limitedReader fails when a limit is exceeded, which it may share with other readers.
type limitedReader struct {
	io.Reader

	limit *byteLimit
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.limit.remaining -= int64(n); r.limit.remaining < 0 {
		return 0, &TooLargeError{r.limit.limit}
	}
	return n, err
}
