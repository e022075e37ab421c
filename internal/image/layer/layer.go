// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layer reads the layers of container images, which are archives of tar: plain, or
// compressed by gzip or zstd.
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
	// Whiteout is the prefix of the name of an entry by which a layer removes or hides what
	// layers below have.
	Whiteout = ".wh."
	// Opaque is the name of an entry that hides all that layers below have in its folder.
	Opaque = Whiteout + Whiteout + ".opq"
	// MaxCount is how many layers an image may have, as in container engines.
	MaxCount = 127
)

// TooLargeError says that the layers of an image have more bytes than they may.
type TooLargeError struct{ Limit int64 }

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the layers of the image have more than %d bytes", e.Limit)
}

// Limits limit the bytes of all layers of an image, as sent and as decompressed: either may
// be endless while the other is not.
type Limits struct{ compressed, content byteLimit }

// NewLimits returns limits of so many bytes.
func NewLimits(limit int64) *Limits {
	return &Limits{compressed: byteLimit{limit, limit}, content: byteLimit{limit, limit}}
}

// ReadEntries calls visit for the entries of a layer, with their contents. It reads all of
// the blob: whether that matches its digest shows only at its end.
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
	// An archive ends before its blob does.
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

// IsSparse reports whether an entry has holes, which cost nothing to send but much to
// write.
func IsSparse(entry *tar.Header) bool {
	for key := range entry.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return entry.Typeflag == tar.TypeGNUSparse
}

// byteLimit is how many bytes are accepted, and how many of these are left.
type byteLimit struct{ left, limit int64 }

// limitedReader counts what it reads against a limit, which other readers may share.
type limitedReader struct {
	io.Reader

	limit *byteLimit
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.limit.left -= int64(n); r.limit.left < 0 {
		return 0, &TooLargeError{r.limit.limit}
	}
	return n, err
}
