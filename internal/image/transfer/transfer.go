// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package transfer copies one image to a new file, from a web server or a reader. It bounds,
// counts and hashes the received bytes, decompresses them, and leaves holes for zeros. Both the
// store of images and drover-machine in a pod use it.
//
// Start with Copy.FromWeb.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"

	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/egress"
)

// Limit is how many bytes an image may have, both as it is sent and decompressed.
type Limit struct {
	Bytes int64
	// Option is the option or field that sets the limit.
	Option string
}

// Check fails if the size that a server states exceeds the limit. A size of 0 means unknown.
func (l Limit) Check(total int64) error {
	if total > l.Bytes {
		return &ContentError{fmt.Errorf("it has %d bytes: %s allows %d", total, l.Option, l.Bytes), true}
	}
	return nil
}

// Exceeded returns the error for content that turned out to be larger than the limit.
func (l Limit) Exceeded(subject string) error {
	return &ContentError{fmt.Errorf("%s %d bytes, the limit of %s", subject, l.Bytes, l.Option), true}
}

// ContentError says why content is unusable. To fetch the same content again would not help.
type ContentError struct {
	error

	// IsInvalid is set if only another image, or another limit, can help.
	IsInvalid bool
}

// Unwrap returns the error without IsInvalid.
func (e *ContentError) Unwrap() error { return e.error }

// Copy is one copy of an image to a file.
type Copy struct {
	// Out is the new file. Blocks of zeros are not written.
	Out io.WriterAt
	// Limit is zero for no limit.
	Limit Limit
	// OnData is called when there is progress, even if none of the data is used.
	OnData func()
	// OnSent receives the bytes of the content as sent, before they are decompressed.
	OnSent func(sent []byte)
	// Begin is called before content is read. version is the server's version of the content, which
	// may be empty, and total its size, 0 if unknown. If Begin fails, FromWeb returns its error.
	Begin func(version string, total int64) error

	hash     hash.Hash
	sparse   diskimage.SparseWriter
	received int64
	failure  error // of Begin or Out, which FromWeb returns unchanged
}

// FromWeb copies the content at the URL of a web server, and decompresses it if it is compressed. Its
// errors do not quote the server.
//
// The checksum is the digest of the bytes as sent, since publishers publish that. It still identifies
// one disk: compressed bytes are decompressed in only one way, and diskimage.Probe rejects a
// compressed file as a disk. So an image with a digest may be used for every source with that digest.
func (c *Copy) FromWeb(ctx context.Context, client *egress.Client, url string) error {
	err := c.fetch(ctx, client, url)
	unusable, isUnusable := errors.AsType[*ContentError](err)
	switch {
	case err == nil:
		return nil
	case c.failure != nil:
		return c.failure
	case isUnusable:
		return unusable
	}
	return egress.Explain(err)
}

func (c *Copy) fetch(ctx context.Context, client *egress.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return &ContentError{errors.New("it is not a valid URL"), true}
	}
	response, err := client.Web(c.Limit.Bytes, c.OnData).RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return egress.StatusError(response.StatusCode)
	}
	total := max(response.ContentLength, 0)
	if c.failure = c.Begin(contentVersion(response), total); c.failure != nil {
		return c.failure
	}
	err = c.decompress(response.Body)
	if err == nil && total > 0 && c.received != total {
		return egress.Errorf("it ended after %d of %d bytes", c.received, total)
	}
	return err
}

// contentVersion returns a web server's version of its content, "" if it states none.
func contentVersion(response *http.Response) string {
	tag, at := response.Header.Get("ETag"), response.Header.Get("Last-Modified")
	if tag == "" && at == "" {
		return ""
	}
	return fmt.Sprint(tag, " ", at, " ", response.ContentLength)
}

func (c *Copy) decompress(body io.Reader) error {
	content, err := compression.NewReader(sentReader{body, c})
	if err == nil {
		defer content.Close()
		_, err = io.Copy(contentWriter{c}, content)
	}
	if unusable, ok := errors.AsType[*compression.Error](err); ok {
		return &ContentError{unusable, false}
	}
	return err
}

// FromReader copies the whole content of a reader, without a limit. It fails if ctx ends.
func (c *Copy) FromReader(ctx context.Context, reader io.Reader) error {
	_, err := io.Copy(contentWriter{c}, sentReader{contextReader{ctx, reader}, c})
	return err
}

// contextReader fails once a context has ended.
type contextReader struct {
	ctx context.Context //nolint:containedctx // of one call
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}

// sentReader counts and hashes the bytes as sent.
type sentReader struct {
	io.Reader

	copy *Copy
}

func (r sentReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	c := r.copy
	c.received += int64(n)
	c.OnSent(p[:n])
	if c.isLimited() && c.received > c.Limit.Bytes {
		return 0, c.Limit.Exceeded("it has more than")
	}
	c.addToSum(p[:n])
	return n, err
}

func (c *Copy) isLimited() bool { return c.Limit != Limit{} }

// contentWriter writes decompressed content.
type contentWriter struct{ copy *Copy }

func (w contentWriter) Write(p []byte) (int, error) {
	c := w.copy
	if c.isLimited() && c.sparse.Length+int64(len(p)) > c.Limit.Bytes {
		return 0, c.Limit.Exceeded("decompressed, it has more than")
	}
	c.OnData() // also here, since a few sent bytes may be much content
	return c.writeContent(p)
}

// Write writes and hashes bytes of a disk in an archive.
func (c *Copy) Write(p []byte) (int, error) {
	c.addToSum(p)
	c.OnData()
	return c.writeContent(p)
}

func (c *Copy) writeContent(p []byte) (int, error) {
	c.sparse.To = c.Out
	n, err := c.sparse.Write(p)
	c.failure = err
	return n, err
}

func (c *Copy) addToSum(p []byte) {
	if c.hash == nil {
		c.hash = sha256.New()
	}
	_, _ = c.hash.Write(p) // never fails
}

// Length returns how many bytes of the disk were written, zeros included.
func (c *Copy) Length() int64 { return c.sparse.Length }

// Checksum returns the digest of the bytes so far, sha256: and 64 digits.
func (c *Copy) Checksum() string {
	c.addToSum(nil)
	return "sha256:" + hex.EncodeToString(c.hash.Sum(nil))
}

// Finish completes the file, and returns its format and size. It verifies the checksum, unless that is
// empty, before it parses the file.
func (c *Copy) Finish(file *os.File, checksum string) (diskimage.Info, error) {
	if err := file.Truncate(c.sparse.Length); err != nil { // its end may be a hole
		return diskimage.Info{}, err
	}
	if got := c.Checksum(); checksum != "" && got != checksum {
		return diskimage.Info{}, &ContentError{fmt.Errorf("its checksum is %s, and %s was asked for", got, checksum), false}
	}
	info, err := file.Stat()
	if err != nil {
		return diskimage.Info{}, err
	}
	probed, err := diskimage.Probe(file, info.Size())
	if err != nil {
		return probed, &ContentError{err, false}
	}
	return probed, nil
}
