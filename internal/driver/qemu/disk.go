// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
)

// disk is a disk that was made, and the image that it stands on.
type disk struct {
	Size  int64 `json:"size"`
	Image image `json:"image"`
}

// image is a file that a disk stands on, as it was when the disk was made.
type image struct {
	Source string `json:"source"`
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"`
}

func (d *Driver) imageOf(spec driver.ServerSpec) string { return cmp.Or(spec.Image.Source, d.Image) }

// openImage looks at the image that a source names.
func (d *Driver) openImage(source string) (image, error) {
	path, err := imagePath(source)
	if err != nil {
		return image{}, err
	}
	f, err := d.openAllowed(path)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	i, err := describeImage(f)
	if err != nil {
		return image{}, unavailable("image %s: %w", path, err)
	}
	i.Source, i.Path = source, path
	return i, nil
}

func unavailable(format string, args ...any) error {
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, format, args...))
}

// imagePath is the file that a source names.
func imagePath(source string) (string, error) {
	const forms = "it must be the absolute path of a file, or file:// before one"
	path, _ := strings.CutPrefix(source, "file://")
	switch {
	case source == "":
		return "", driver.Errorf(driver.ErrInvalid, "spec.image.source is empty and there is no default image: %s", forms)
	case !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return "", driver.Errorf(driver.ErrInvalid, "spec.image.source is %q: %s", source, forms)
	case filepath.Clean(path) != path:
		return "", driver.Errorf(driver.ErrInvalid, "spec.image.source is %q: a path must be written without .., . and doubled /", source)
	}
	return path, nil
}

// openAllowed opens a file below one of the allowed folders. No symbolic link
// leads out of them.
func (d *Driver) openAllowed(path string) (*os.File, error) {
	dirs := append([]string{d.dir.Path(imagesDir)}, d.ImageDirs...)
	for _, dir := range dirs {
		name, err := filepath.Rel(dir, path)
		if err != nil || !filepath.IsLocal(name) {
			continue
		}
		f, err := openBelow(dir, name)
		if err != nil {
			return nil, unavailable("image %s: %w", path, err)
		}
		return f, nil
	}
	return nil, driver.Errorf(driver.ErrInvalid, "spec.image.source is %q: images may be in %s", path, strings.Join(dirs, ", "))
}

func openBelow(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	// A pipe would wait for its other end.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func describeImage(f *os.File) (image, error) {
	info, err := f.Stat()
	if err != nil {
		return image{}, err
	}
	probed, err := diskimage.Probe(f, info.Size())
	return image{Format: probed.Format, Size: probed.Size, Stamp: stampOf(info)}, err
}

// stampOf changes when a file does.
func stampOf(info fs.FileInfo) string {
	var inode uint64
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = stat.Ino
	}
	return fmt.Sprintf("%d-%d-%d", inode, info.Size(), info.ModTime().UnixNano())
}

// checkDisk refuses what only the disk at hand can tell.
func (s *server) checkDisk(spec driver.ServerSpec) error {
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < s.Root.Size {
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: it may only grow, and the server has %d", spec.RootDiskBytes, s.Root.Size)
	}
	return nil
}

// makeRoot makes a root disk on top of the spec's image.
func (d *Driver) makeRoot(h home, spec driver.ServerSpec) (disk, error) {
	i, err := d.openImage(d.imageOf(spec))
	if err != nil {
		return disk{}, err
	}
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < i.Size {
		return disk{}, driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: the image %s needs %d", spec.RootDiskBytes, i.Path, i.Size)
	}
	size := max(spec.RootDiskBytes, i.Size)
	err = diskimage.CreateQcow2(h.file(rootDiskFile), size, &diskimage.Backing{Path: i.Path, Format: i.Format})
	return disk{Size: size, Image: i}, err
}

// prepareRoot makes sure that the root disk is the one that the spec asks for. A
// new image needs a new disk.
func (d *Driver) prepareRoot(s *server, spec driver.ServerSpec) (*drive, error) {
	if s.Root.Image.Source != d.imageOf(spec) {
		if err := d.replaceRoot(s, spec); err != nil {
			return nil, err
		}
	}
	if err := d.checkImage(s.Root.Image); err != nil {
		return nil, err
	}
	return &drive{Path: rootDiskFile, Backing: &layer{Path: s.Root.Image.Path, Format: s.Root.Image.Format}}, nil
}

// checkImage : a disk is worth nothing on top of anything but the image that it
// was made on.
func (d *Driver) checkImage(was image) error {
	f, err := d.openAllowed(was.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return unavailable("image %s: %w", was.Path, err)
	}
	if stampOf(info) != was.Stamp {
		return unavailable("image %s was changed or replaced since the server's disk was made on top of it: put it back, or name another image", was.Path)
	}
	return nil
}

func (d *Driver) replaceRoot(s *server, spec driver.ServerSpec) error {
	tmp, err := d.dir.Temp()
	if err != nil {
		return d.dir.Explain(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	root, err := d.makeRoot(home{d.dir, tmp}, spec)
	if err != nil {
		return d.dir.Explain(err)
	}
	s.Root = root
	if err := errors.Join(os.Rename(filepath.Join(tmp, rootDiskFile), s.file(rootDiskFile)), s.save(s.record)); err != nil {
		return d.dir.Explain(err)
	}
	return nil
}

// grow makes the root disk of a QEMU that is up larger, if the spec does.
func (d *Driver) grow(ctx context.Context, s *server, spec driver.ServerSpec) error {
	if spec.RootDiskBytes <= s.Root.Size {
		return nil
	}
	if err := s.command(ctx, "block_resize", object{"node-name": "root", "size": spec.RootDiskBytes}, nil); err != nil {
		return err
	}
	s.Root.Size = spec.RootDiskBytes
	return d.dir.Explain(s.save(s.record))
}
