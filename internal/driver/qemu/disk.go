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
	f, err := d.openSource("image.source", source)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	path := sourcePath(source)
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

func sourcePath(source string) string { return strings.TrimPrefix(source, "file://") }

// openSource opens the file that a field of the spec names. It is below one of
// the allowed folders, and no symbolic link leads out of them.
func (d *Driver) openSource(field, source string) (*os.File, error) {
	const forms = "it must be the absolute path of a file, or file:// before one"
	path := sourcePath(source)
	switch {
	case source == "":
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is empty and there is no default: %s", field, forms)
	case !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: %s", field, source, forms)
	case filepath.Clean(path) != path:
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: a path must be written without .., . and doubled /", field, source)
	}
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
	return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: images may be in %s", field, source, strings.Join(dirs, ", "))
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

// kernelOf finds the files of a kernel that is booted directly.
func (d *Driver) kernelOf(spec driver.ServerSpec) (*kernel, error) {
	k := spec.Image.Kernel
	if k == nil {
		return nil, nil //nolint:nilnil // Nil is for the disk's own.
	}
	files := map[string]string{"image.kernel.source": k.Source}
	if k.Initrd != "" {
		files["image.kernel.initrd"] = k.Initrd
	}
	for field, source := range files {
		f, err := d.openSource(field, source)
		if err != nil {
			return nil, err
		}
		_ = f.Close()
	}
	return &kernel{Path: sourcePath(k.Source), Initrd: sourcePath(k.Initrd), Cmdline: k.Cmdline}, nil
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

// makeRoot makes a root disk on top of the spec's image. A kernel that is booted
// directly may do without an image, and without a disk.
func (d *Driver) makeRoot(h home, spec driver.ServerSpec) (disk, error) {
	source, size := d.imageOf(spec), spec.RootDiskBytes
	if source == "" && spec.Image.Kernel != nil {
		if size == 0 {
			return disk{}, nil
		}
		return disk{Size: size}, diskimage.CreateQcow2(h.file(rootDiskFile), size, nil)
	}
	i, err := d.openImage(source)
	if err != nil {
		return disk{}, err
	}
	if size != 0 && size < i.Size {
		return disk{}, driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: the image %s needs %d", size, i.Path, i.Size)
	}
	size = max(size, i.Size)
	err = diskimage.CreateQcow2(h.file(rootDiskFile), size, &diskimage.Backing{Path: i.Path, Format: i.Format})
	return disk{Size: size, Image: i}, err
}

// prepareRoot makes sure that the root disk is the one that the spec asks for. A
// new image needs a new disk.
func (d *Driver) prepareRoot(s *server, spec driver.ServerSpec) (*drive, error) {
	if s.Root.Image.Source != d.imageOf(spec) || (s.Root.Size == 0 && spec.RootDiskBytes > 0) {
		if err := d.replaceRoot(s, spec); err != nil {
			return nil, err
		}
	}
	was := s.Root.Image
	switch {
	case s.Root.Size == 0:
		return nil, nil //nolint:nilnil // Nil is for no disk.
	case was.Path == "":
		return &drive{Path: rootDiskFile}, nil
	}
	if err := d.checkImage(was); err != nil {
		return nil, err
	}
	return &drive{Path: rootDiskFile, Backing: &layer{Path: was.Path, Format: was.Format}}, nil
}

// checkImage : a disk is worth nothing on top of anything but the image that it
// was made on.
func (d *Driver) checkImage(was image) error {
	f, err := d.openSource("image.source", was.Path)
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
	if root.Size > 0 {
		err = os.Rename(filepath.Join(tmp, rootDiskFile), s.file(rootDiskFile))
	} else {
		err = os.RemoveAll(s.file(rootDiskFile))
	}
	return d.dir.Explain(errors.Join(err, s.save(s.record)))
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
