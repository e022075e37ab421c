// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"io"

	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/internal/image/source"
)

// copySource copies the disk that the source stands for.
func (a *attempt) copySource(ctx context.Context) error {
	from := a.store.Sources
	switch a.ref.Source.Kind {
	case source.RegistryDisk:
		return from.copyOCI(ctx, a)
	case source.Catalogue:
		return from.copyCloud(ctx, a)
	default:
		return from.copyHTTP(ctx, a.ref.Source.Name, a)
	}
}

// copyDecompressed copies what a web server sends, decompressed if it is compressed.
//
// The checksum, and so the image's name in the store, is the digest of the bytes as sent, which
// publishers publish. The name still stands for one content: the bytes are decompressed in one
// way only, and diskimage.Probe refuses a compressed file as a disk. So an image that is stored
// under a digest may be used for that digest, whichever server it came from.
func (a *attempt) copyDecompressed(body io.Reader) error {
	content, err := compression.NewReader(sentReader{body, a})
	if err == nil {
		defer content.Close()
		_, err = io.Copy(contentWriter{a}, content)
	}
	if unusable, ok := errors.AsType[*compression.Error](err); ok {
		return unusableContent("%w", unusable)
	}
	return err
}

// sentReader counts and hashes what is sent.
type sentReader struct {
	io.Reader

	attempt *attempt
}

func (r sentReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err := r.attempt.receiveBytes(p[:n]); err != nil {
		return 0, err
	}
	return n, err
}

// contentWriter writes what was decompressed.
type contentWriter struct{ attempt *attempt }

func (w contentWriter) Write(p []byte) (int, error) {
	a := w.attempt
	if limit := a.store.Sources.maxSize; a.sparse.Length+int64(len(p)) > limit {
		return 0, tooLargeError("decompressed, it has more than", limit)
	}
	a.progress.ResetStallTimer() // little that is sent may be much content
	return a.writeContent(p)
}

// receiveBytes counts and hashes bytes that were sent.
func (a *attempt) receiveBytes(p []byte) error {
	if a.countBytes(len(p)); a.received > a.store.Sources.maxSize {
		return tooLargeError("it has more than", a.store.Sources.maxSize)
	}
	_, _ = a.hash.Write(p) // never fails
	a.published.receiveBytes(p)
	return nil
}

// writeContent writes bytes of the disk.
func (a *attempt) writeContent(p []byte) (int, error) {
	n, err := a.sparse.Write(p)
	a.err = err
	return n, err
}
