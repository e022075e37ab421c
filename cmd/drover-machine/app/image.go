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

// defaultStall is how long a fetch may go without any data.
const defaultStall = time.Minute

// progress is how far a disk is made. It may be read at any time.
type progress struct {
	done  atomic.Int64
	total atomic.Int64 // 0 where it is not known
}

// copied returns how far it is, nil if nothing is read.
func (p *progress) copied() *control.Copied {
	done, total := p.done.Load(), p.total.Load()
	if done == 0 {
		return nil
	}
	return &control.Copied{Bytes: done, TotalBytes: total}
}

// begin sets how many bytes are to be read, 0 or less if that is not known.
func (p *progress) begin(total int64) {
	p.done.Store(0)
	p.total.Store(max(total, 0))
}

// fillDisk makes a file that is a copy of a disk's image, with the holes that it may have, and
// returns its format. The bytes as sent must have the checksum, if there is one, before anything
// in the disk is read. When fillDisk returns, the copy is on the disk of the host.
func (r *run) fillDisk(ctx context.Context, d *description.Disk, path string) (format string, err error) {
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

// imageSizeError says that an image is larger than its disk may be.
type imageSizeError struct {
	// Volume is empty for the root disk.
	Volume string `json:"volume,omitempty"`
	// Bytes is the size of the image's disk.
	Bytes int64 `json:"bytes"`

	allowed int64
}

// Error implements error.
func (e *imageSizeError) Error() string {
	return fmt.Sprintf("the image needs a disk of %d bytes, and this one has %d", e.Bytes, e.allowed)
}

// checkSize refuses an image that is larger than its disk is to be.
func checkSize(d *description.Disk, info diskimage.Info) error {
	if allowed := cmp.Or(d.SizeBytes, d.MaxBytes); allowed != 0 && info.Size > allowed {
		return &imageSizeError{Bytes: info.Size, allowed: allowed}
	}
	return nil
}

// findImage returns the file of an image: the only one, if the path is a folder, as in container
// disks.
func findImage(path string) (string, error) {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return path, nil
	case err != nil:
		return "", err
	case len(entries) != 1:
		return "", fmt.Errorf("the folder has %d files: it must have one", len(entries))
	}
	return filepath.Join(path, entries[0].Name()), nil
}

// openFile opens an image.
func openFile(path string) (*os.File, error) {
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

// openImage opens the image of a disk and determines what it is.
func openImage(d *description.Disk) (*os.File, diskimage.Info, error) {
	f, err := openFile(d.Image)
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

// copyFile copies an image that is a file. One that does not fit on its disk is not copied, unless its checksum
// has to be compared before anything in it is read.
func (r *run) copyFile(ctx context.Context, d *description.Disk, c *transfer.Copy) error {
	image, err := openFile(d.Image)
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

// anyHost allows what the guest reaches too: the place in the network is the tenant's. Package
// egress still refuses the metadata services of clouds.
var anyHost = []string{"0.0.0.0/0", "::/0"}

// fetchImage copies an image from a web server. Errors have nothing that the server answered.
func (r *run) fetchImage(ctx context.Context, d *description.Disk, c *transfer.Copy) error {
	hosts, err := egress.ParseHosts(anyHost)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(r.stallWithin, func() { cancel(fmt.Errorf("no data has come for %v", r.stallWithin)) })
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
