// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
)

// baseImage is the image that a disk stands on.
type baseImage struct {
	imageSettings
	image.Base
}

// imageSettings identify an image.
type imageSettings struct {
	Source   string `json:"source,omitempty"`
	Checksum string `json:"checksum,omitempty"`
}

// imageOf returns the image that a spec requests, or else the present one: a change of
// the default affects no server.
func imageOf(spec driver.ServerSpec, have imageSettings) imageSettings {
	if spec.Image.Source == "" {
		return have
	}
	return imageSettings{spec.Image.Source, spec.Image.Checksum}
}

// imageOf returns the image that a spec requests, or the one that the root disk
// stands on.
func (inst *instance) imageOf(spec driver.ServerSpec) imageSettings {
	return imageOf(spec, inst.Root.Image.imageSettings)
}

// ref returns the image in the form that the store takes.
func (i imageSettings) ref() image.Ref { return image.Ref{Source: i.Source, Checksum: i.Checksum} }

// isSame reports whether the requested image is the one that a disk stands on, under
// whatever name. A checksum may have been added or left out, or another server may have
// the same image. The content behind a source may have changed since the disk was made of
// it, so without a checksum only the name counts.
func (d *Driver) isSame(have baseImage, requested imageSettings) bool {
	switch {
	case have.imageSettings == requested:
		return true
	case requested.Source == "" || image.IsRemote(have.Source) != image.IsRemote(requested.Source):
		return false
	case !image.IsRemote(requested.Source):
		return image.FilePath(requested.Source) == have.Path
	case requested.Source == have.Source && requested.Checksum == "":
		return true
	}
	return d.images.Digest(requested.ref()) == image.DigestOf(have.Path)
}

// openImage describes an image that is on this host.
func (d *Driver) openImage(field string, requested imageSettings) (baseImage, error) {
	f, err := d.openFound(field, requested)
	if err != nil {
		return baseImage{}, err
	}
	defer func() { _ = f.Close() }()
	base, err := image.DescribeFile(f, requested.Source)
	if err != nil {
		return baseImage{}, unavailableError("image %s: %w", image.Redact(requested.Source), err)
	}
	return baseImage{requested, base}, nil
}

// openFound opens the file of an image: the one that the source names, or the one that
// was fetched.
func (d *Driver) openFound(field string, requested imageSettings) (*os.File, error) {
	if !image.IsRemote(requested.Source) {
		return d.openSource(field+".source", requested.Source)
	}
	path, exists := d.images.Path(requested.ref())
	if !exists {
		return nil, unavailableError("image %s has to be fetched first", image.Redact(requested.Source))
	}
	f, err := os.Open(path) //nolint:gosec // in the driver's folder
	if err != nil {
		return nil, unavailableError("image %s: %w", image.Redact(requested.Source), err)
	}
	return f, nil
}

// openSource opens the file that a field of the spec names. It must be below one of the
// allowed folders, and no symbolic link may lead out of them.
func (d *Driver) openSource(field, source string) (*os.File, error) {
	forms := "it must be the absolute path of a file, or file:// before one"
	if strings.HasSuffix(field, "image.source") {
		forms += ", or begin with http://, https:// or oci://"
	}
	path := image.FilePath(source)
	switch {
	case source == "":
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is empty and there is no default: %s", field, forms)
	case !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: %s", field, image.Redact(source), forms)
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
			return nil, unavailableError("image %s: %w", path, err)
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

// fetchedRef returns the reference by which the image is fetched again: by its digest,
// whatever its source stands for by now.
func (i baseImage) fetchedRef(policy image.PullPolicy) image.Ref {
	return image.Ref{Source: i.Source, Checksum: image.DigestOf(i.Path), PullPolicy: policy}
}

// digest returns the digest of an image that was fetched, whatever its source stands for
// by now; others have none.
func (i baseImage) digest() string {
	if !image.IsRemote(i.Source) || i.Path == "" {
		return ""
	}
	return image.DigestOf(i.Path)
}

// pathOf returns where an image is now.
func (d *Driver) pathOf(i baseImage) string {
	if !image.IsRemote(i.Source) {
		return i.Path
	}
	path, _ := d.images.Path(i.fetchedRef(""))
	return path
}

// openBase opens the image that a disk stands on. The disk is unusable on top of any
// other content.
func (d *Driver) openBase(field string, was baseImage) (*os.File, error) {
	f, err := d.reopenImage(field, was)
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
func (d *Driver) checkBase(f *os.File, was baseImage) error {
	found, err := image.DescribeFile(f, was.Source)
	if err == nil && found.HasContentOf(was.Base) {
		return nil
	}
	why := ""
	if err != nil {
		why = ": " + err.Error()
	}
	if image.IsRemote(was.Source) {
		return unavailableError("image %s was cut off or changed in %s: remove that file, and it is fetched again%s", image.Redact(was.Source), d.pathOf(was), why)
	}
	return unavailableError("image %s was changed or replaced since the server's disk was made on top of it: put it back as it was, its time included%s", was.Path, why)
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

// reopenImage opens the image of a disk. The content behind a source may have changed,
// but not what was fetched from it then.
func (d *Driver) reopenImage(field string, was baseImage) (*os.File, error) {
	if !image.IsRemote(was.Source) {
		return d.openFound(field, imageSettings{Source: was.Path})
	}
	return d.openFound(field, imageSettings{was.Source, was.fetchedRef("").Checksum})
}

// checkImages checks that everything the next run is made of is available, and makes
// nothing.
func (d *Driver) checkImages(s *instance, spec driver.ServerSpec) error {
	if err := d.checkKernel(spec); err != nil {
		return err
	}
	if err := d.checkRoot(s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		err := d.checkImage(volumeField(i), have)
		if !made && v.Image != nil {
			_, err = d.imageFor(volumeOrder(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(s *instance, spec driver.ServerSpec) error {
	requested := s.imageOf(spec)
	switch {
	case !s.needsRoot(spec):
		return d.checkImage(rootField, s.Root)
	case requested.Source == "" && spec.Image.Kernel != nil:
		return nil
	}
	_, err := d.imageFor(rootOrder(spec, requested))
	return err
}

// checkImageDirs refuses folders through which a machine could get Drover's own files:
// the disk of another machine, with its secrets, or a private key.
func (o Options) checkImageDirs(dir *statedir.Dir) error {
	always := dir.Path(imagesDir)
	for _, images := range o.ImageDirs {
		if !filepath.IsAbs(images) {
			return fmt.Errorf("--qemu-image-dirs has %q: each must be the absolute path of a folder", images)
		}
		if containsPath(always, images) {
			continue
		}
		for _, own := range append([]string{dir.Path()}, o.Private...) {
			if containsPath(images, own) || containsPath(own, images) {
				return fmt.Errorf("--qemu-image-dirs has %q: it must not hold, or be in, %s, where Drover keeps disks and secrets; %s is allowed always",
					images, own, always)
			}
		}
	}
	return nil
}

// containsPath reports whether a path is a folder or below it, after symbolic links are
// resolved.
func containsPath(dir, path string) bool {
	name, err := filepath.Rel(resolveLinks(filepath.Clean(dir)), resolveLinks(filepath.Clean(path)))
	return err == nil && filepath.IsLocal(name)
}

// resolveLinks follows symbolic links in the part of the path that exists.
func resolveLinks(path string) string {
	whole, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(resolveLinks(parent), filepath.Base(path))
	}
	if err != nil {
		return path
	}
	return whole
}
