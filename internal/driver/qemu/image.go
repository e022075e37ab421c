// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
	"cloudnative.tw/drover/internal/driver/qemu/imagestore"
	"cloudnative.tw/drover/internal/machine"
)

// image is a file that a disk stands on, as it was when the disk was made. A fetched
// image is in the store, wherever that is now. Only the name in its path counts, which
// identifies its content.
type image struct {
	imageSettings

	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"`
}

// imageSettings identify an image.
type imageSettings struct {
	Source   string `json:"source,omitempty"`
	Checksum string `json:"checksum,omitempty"`
}

// imageOf returns the image that a spec asks for, or else the present one: a change of
// the default affects no server.
func imageOf(spec driver.ServerSpec, have imageSettings) imageSettings {
	if spec.Image.Source == "" {
		return have
	}
	return imageSettings{spec.Image.Source, spec.Image.Checksum}
}

// imageOf returns the image that a spec asks for, or the one that the root disk
// stands on.
func (inst *instance) imageOf(spec driver.ServerSpec) imageSettings {
	return imageOf(spec, inst.Root.Image.imageSettings)
}

// ref returns the image in the form that the store takes.
func (i imageSettings) ref() driver.Image {
	return driver.Image{Source: i.Source, Checksum: i.Checksum}
}

// isSame reports whether the requested image is the one that a disk stands on, under
// whatever name. A checksum may have been added or left out, or another server may have
// the same image. The content behind a source may have changed since the disk was made of
// it, so without a checksum only the name counts.
func (d *Driver) isSame(have image, asked imageSettings) bool {
	switch {
	case have.imageSettings == asked:
		return true
	case asked.Source == "" || imagestore.IsRemote(have.Source) != imagestore.IsRemote(asked.Source):
		return false
	case !imagestore.IsRemote(asked.Source):
		return sourcePath(asked.Source) == have.Path
	case asked.Source == have.Source && asked.Checksum == "":
		return true
	}
	return d.images.Digest(asked.ref()) == imagestore.DigestOf(have.Path)
}

// openImage describes an image that is on this host.
func (d *Driver) openImage(field string, asked imageSettings) (image, error) {
	f, err := d.openFound(field, asked)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	i, err := describeImage(f, asked)
	if err != nil {
		return image{}, unavailable("image %s: %w", imagestore.Redact(asked.Source), err)
	}
	return i, nil
}

// openFound opens the file of an image: the one that the source names, or the one that
// was fetched.
func (d *Driver) openFound(field string, asked imageSettings) (*os.File, error) {
	if !imagestore.IsRemote(asked.Source) {
		return d.openSource(field+".source", asked.Source)
	}
	path, there := d.images.Path(asked.ref())
	if !there {
		return nil, unavailable("image %s has to be fetched first", imagestore.Redact(asked.Source))
	}
	f, err := os.Open(path) //nolint:gosec // in the driver's folder
	if err != nil {
		return nil, unavailable("image %s: %w", imagestore.Redact(asked.Source), err)
	}
	return f, nil
}

func unavailable(format string, args ...any) error {
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, format, args...))
}

func sourcePath(source string) string { return strings.TrimPrefix(source, "file://") }

// openSource opens the file that a field of the spec names. It must be below one of the
// allowed folders, and no symbolic link may lead out of them.
func (d *Driver) openSource(field, source string) (*os.File, error) {
	forms := "it must be the absolute path of a file, or file:// before one"
	if strings.HasSuffix(field, "image.source") {
		forms += ", or begin with http://, https:// or oci://"
	}
	path := sourcePath(source)
	switch {
	case source == "":
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is empty and there is no default: %s", field, forms)
	case !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: %s", field, imagestore.Redact(source), forms)
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
	// Opening a pipe would wait for its other end.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func checkRegular(f *os.File) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	return err
}

// openKernel opens the files of a kernel that is booted directly.
func (d *Driver) openKernel(spec driver.ServerSpec, files *machine.Files) (*machine.Kernel, error) {
	k := spec.Image.Kernel
	if k == nil {
		return nil, nil //nolint:nilnil // Nil is for the disk's own.
	}
	// In order, so that of two missing files the same one is reported each time.
	f, err := d.openSource("image.kernel.source", k.Source)
	if err != nil {
		return nil, err
	}
	opened := &machine.Kernel{Path: files.AddPlain(f), Cmdline: k.Cmdline}
	if k.Initrd == "" {
		return opened, nil
	}
	if f, err = d.openSource("image.kernel.initrd", k.Initrd); err != nil {
		return nil, err
	}
	opened.Initrd = files.AddPlain(f)
	return opened, nil
}

// checkKernel reports whether the files of a kernel could be opened now.
func (d *Driver) checkKernel(spec driver.ServerSpec) error {
	files := &machine.Files{}
	defer files.Close()
	_, err := d.openKernel(spec, files)
	return err
}

func describeImage(f *os.File, asked imageSettings) (image, error) {
	info, err := f.Stat()
	if err != nil {
		return image{}, err
	}
	i := image{imageSettings: asked, Path: sourcePath(asked.Source)}
	if imagestore.IsRemote(asked.Source) {
		i.Path = filepath.Base(f.Name())
	}
	i.Stamp = i.stampOf(info)
	probed, err := diskimage.Probe(f, info.Size())
	i.Format, i.Size = probed.Format, probed.Size
	return i, err
}

// stampOf returns a stamp that changes when the image's file does, and not when the file
// is copied with its times, as from a backup. A file of the store is named after its
// content and may have been fetched again, so only truncation shows in its stamp.
func (i image) stampOf(info fs.FileInfo) string {
	if imagestore.IsRemote(i.Source) {
		return strconv.FormatInt(info.Size(), 10)
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
}

// fetched returns the reference by which the image is fetched again: by its digest,
// whatever its source stands for by now.
func (i image) fetched(policy driver.PullPolicy) driver.Image {
	return driver.Image{Source: i.Source, Checksum: imagestore.DigestOf(i.Path), PullPolicy: policy}
}

// digest returns the digest of an image that was fetched, whatever its source stands for
// by now; others have none.
func (i image) digest() string {
	if !imagestore.IsRemote(i.Source) || i.Path == "" {
		return ""
	}
	return imagestore.DigestOf(i.Path)
}

// pathOf returns where an image is now.
func (d *Driver) pathOf(i image) string {
	if !imagestore.IsRemote(i.Source) {
		return i.Path
	}
	path, _ := d.images.Path(i.fetched(""))
	return path
}

// openBase opens the image that a disk stands on. The disk is unusable on top of any
// other content.
func (d *Driver) openBase(field string, was image) (*os.File, error) {
	f, err := d.reopen(field, was)
	if err != nil {
		return nil, err
	}
	if err := d.checkBase(f, was); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkBase checks an image as it is opened. Size and time identify it. Whoever replaces
// the file can preserve both, so its content must not lead to other files either.
func (d *Driver) checkBase(f *os.File, was image) error {
	info, err := f.Stat()
	if err != nil {
		return unavailable("image %s: %w", was.Path, err)
	}
	found, err := diskimage.Probe(f, info.Size())
	if err == nil && was.stampOf(info) == was.Stamp && found == (diskimage.Info{Format: was.Format, Size: was.Size}) {
		return nil
	}
	why := ""
	if err != nil {
		why = ": " + err.Error()
	}
	if imagestore.IsRemote(was.Source) {
		return unavailable("image %s was cut off or changed in %s: remove that file, and it is fetched again%s", imagestore.Redact(was.Source), d.pathOf(was), why)
	}
	return unavailable("image %s was changed or replaced since the server's disk was made on top of it: put it back as it was, its time included%s", was.Path, why)
}

// checkImage reports whether the image of a disk could be opened now.
func (d *Driver) checkImage(field string, have disk) error {
	if have.Image.Path == "" {
		return nil
	}
	f, err := d.openBase(field, have.Image)
	if err != nil {
		return err
	}
	return f.Close()
}

// reopen opens the image of a disk. The content behind a source may have changed, but not
// what was fetched from it then.
func (d *Driver) reopen(field string, was image) (*os.File, error) {
	if !imagestore.IsRemote(was.Source) {
		return d.openFound(field, imageSettings{Source: was.Path})
	}
	return d.openFound(field, imageSettings{was.Source, was.fetched("").Checksum})
}
