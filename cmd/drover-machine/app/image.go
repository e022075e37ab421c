// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/internal/image/transfer"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/description"
)

// defaultStall is how long a download may receive no data.
const defaultStall = time.Minute

// progress is the progress of copying an image. It is safe for concurrent use.
type progress struct {
	done  atomic.Int64 // bytes
	total atomic.Int64 // bytes, 0 if unknown
}

// copied returns the progress, nil if no image is being copied.
func (p *progress) copied() *control.Copied {
	done, total := p.done.Load(), p.total.Load()
	if done == 0 {
		return nil
	}
	return &control.Copied{Bytes: done, TotalBytes: total}
}

// begin resets the progress. total may be 0 or negative if it is unknown.
func (p *progress) begin(total int64) {
	p.done.Store(0)
	p.total.Store(max(total, 0))
}

// copyImageTo copies the image of a disk to a new file, keeps its holes, and returns its format. It
// verifies the checksum before it parses the image. When it returns, the file is synced to the
// host's disk.
func (r *run) copyImageTo(ctx context.Context, d *description.Disk, path string) (format string, err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // in the disk's folder
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	format, err = r.copyImage(ctx, d, out)
	if err == nil {
		err = out.Sync()
	}
	if err != nil {
		return "", fmt.Errorf("copying image %s: %w", egress.Redact(d.Image), err)
	}
	return format, nil
}

func (r *run) copyImage(ctx context.Context, d *description.Disk, out *os.File) (format string, err error) {
	c := &transfer.Copy{Out: out, OnData: func() {}, OnSent: func(sent []byte) { r.progress.done.Add(int64(len(sent))) }}
	copyFrom := r.copyFile
	if d.IsFetched() {
		copyFrom = r.fetchImage
	}
	if err := copyFrom(ctx, d, c); err != nil {
		return "", err
	}
	info, err := c.Finish(out, d.Checksum)
	return info.Format, cmp.Or(err, checkSize(d, info))
}

// imageSizeError means that an image is larger than its disk may be.
type imageSizeError struct {
	// Volume is empty for the root disk.
	Volume string `json:"volume,omitempty"`
	// Bytes is the size of the disk that the image needs.
	Bytes int64 `json:"bytes"`

	allowed int64
}

// Error implements error.
func (e *imageSizeError) Error() string {
	return fmt.Sprintf("the image needs a disk of %d bytes, and this disk may have %d", e.Bytes, e.allowed)
}

// checkSize fails with an imageSizeError if the image does not fit on the disk.
func checkSize(d *description.Disk, info diskimage.Info) error {
	if allowed := cmp.Or(d.SizeBytes, d.MaxBytes); allowed != 0 && info.Size > allowed {
		return &imageSizeError{Bytes: info.Size, allowed: allowed}
	}
	return nil
}

// findImage returns the file of an image. If path is a folder, as in container disks, that is the
// only file in it.
func findImage(path string) (string, error) {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return path, nil
	case err != nil:
		return "", err
	case len(entries) != 1:
		return "", fmt.Errorf("the folder %s has %d files, and must have one", path, len(entries))
	}
	return filepath.Join(path, entries[0].Name()), nil
}

// openImageFile opens the file of an image.
func openImageFile(path string) (*os.File, error) {
	file, err := findImage(path)
	var f *os.File
	if err == nil {
		f, err = diskimage.OpenRegular(file, true)
	}
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", path, err)
	}
	return f, nil
}

// openImage opens the image of a disk, and returns its format and size.
func openImage(d *description.Disk) (*os.File, diskimage.Info, error) {
	f, err := openImageFile(d.Image)
	if err != nil {
		return nil, diskimage.Info{}, err
	}
	info, err := probeImage(f)
	if err = cmp.Or(err, checkSize(d, info)); err != nil {
		return nil, info, errors.Join(fmt.Errorf("image %s: %w", d.Image, err), f.Close())
	}
	return f, info, nil
}

func probeImage(f *os.File) (diskimage.Info, error) {
	stat, err := f.Stat()
	if err != nil {
		return diskimage.Info{}, err
	}
	return diskimage.Probe(f, stat.Size())
}

// copyFile copies an image file. Without a checksum it first checks that the image fits on its disk. With a
// checksum, the image must not be parsed before the checksum of the copy was verified.
func (r *run) copyFile(ctx context.Context, d *description.Disk, c *transfer.Copy) error {
	image, err := openImageFile(d.Image)
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	if d.Checksum == "" {
		info, err := probeImage(image)
		if err = cmp.Or(err, checkSize(d, info)); err != nil {
			return err
		}
	}
	stat, err := image.Stat()
	if err != nil {
		return err
	}
	r.progress.begin(stat.Size())
	return c.FromReader(ctx, image)
}

// anyHost allows all addresses, since the pod's network belongs to the tenant, and the guest reaches the
// same addresses. Package egress still denies the metadata services of clouds.
var anyHost = []string{"0.0.0.0/0", "::/0"}

// fetchImage downloads an image from a web server. Its errors contain no text from the server.
func (r *run) fetchImage(ctx context.Context, d *description.Disk, c *transfer.Copy) error {
	hosts, err := egress.ParseHosts(anyHost)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(r.stallWithin, func() { cancel(fmt.Errorf("the server has sent no data for %v", r.stallWithin)) })
	defer stall.Stop()
	c.Limit = transfer.Limit{Bytes: r.description.ImageMaxBytes, Option: "imageMaxBytes"}
	c.OnData = func() { stall.Reset(r.stallWithin) }
	c.Begin = func(_ string, total int64) error {
		r.progress.begin(total)
		return c.Limit.Check(total)
	}
	err = c.FromWeb(ctx, egress.New(hosts), d.Image)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
