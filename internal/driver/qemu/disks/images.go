// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/launch"
)

// describeImage describes an image that is on this host.
func (d *Store) describeImage(field string, requested image.Ref) (image.Base, error) {
	if requested.Source.IsFetched() {
		described, err := d.images.Describe(requested)
		return described, ContractError(err)
	}
	f, err := d.openSource(field+".source", requested.Source)
	if err != nil {
		return image.Base{}, err
	}
	defer func() { _ = f.Close() }()
	described, err := image.DescribeFile(f, requested)
	if err != nil {
		return image.Base{}, unavailableError("image %s: %w", requested.Source, err)
	}
	return described, nil
}

// SourceForms says which forms the source of a field may have: of the root disk's image, of a volume's, which
// is a disk, or of a file of a kernel.
func SourceForms(field string) string {
	forms := "the absolute path of a file, or file:// before one"
	if field == "image.source" {
		forms = "the reference of a container image, " + forms
	}
	if strings.HasSuffix(field, "image.source") {
		forms += ", or begin with cloud://, http://, https:// or oci://"
	}
	return "it must be " + forms
}

// openSource opens the file that a field of the spec names. It must be below one of the
// allowed folders, and no symbolic link may lead out of them.
func (d *Store) openSource(field string, from source.Source) (*os.File, error) {
	forms, path := SourceForms(field), from.Name
	switch {
	case from.Kind == source.None:
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is empty and there is no default: %s", field, forms)
	case from.Kind != source.File || !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: %s", field, from, forms)
	case filepath.Clean(path) != path:
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: a path must be written without .., . and doubled /", field, from)
	}
	for _, dir := range d.imageDirs {
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
	return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: images may be in %s", field, from, strings.Join(d.imageDirs, ", "))
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
	if err := diskimage.CheckRegular(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenKernel opens the files of a kernel that is booted directly.
func (d *Store) OpenKernel(spec driver.ServerSpec, files *launch.Files) (*launch.Kernel, error) {
	k := spec.Image.Kernel
	if k == nil {
		return nil, nil //nolint:nilnil // Nil stands for the image that the disk has.
	}
	// In order, so that of two missing files the same one is reported each time.
	left := spec.MemoryBytes
	f, err := d.openLoaded("image.kernel.source", k.Source, &left)
	if err != nil {
		return nil, err
	}
	opened := &launch.Kernel{FD: files.Add(f), Cmdline: k.Cmdline}
	if k.Initrd == "" {
		return opened, nil
	}
	if f, err = d.openLoaded("image.kernel.initrd", k.Initrd, &left); err != nil {
		return nil, err
	}
	opened.InitrdFD = files.Add(f)
	return opened, nil
}

// openLoaded opens a file that QEMU loads into the guest's memory. left is how much of that memory the other files leave.
// A larger file is refused, since a run may keep a copy of it on the host's disk.
func (d *Store) openLoaded(field, path string, left *int64) (*os.File, error) {
	f, err := d.openSource(field, source.Parse(path))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > *left {
		err = driver.Errorf(driver.ErrInvalid, "spec.%s is %q, which has %d bytes: kernel and initrd must fit into spec.resource.memory, of which %d bytes are left for it", field, path, info.Size(), *left)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	*left -= info.Size()
	return f, nil
}

// CheckKernel reports whether the files of a kernel could be opened now.
func (d *Store) CheckKernel(spec driver.ServerSpec) error {
	files := &launch.Files{}
	defer files.Close()
	_, err := d.OpenKernel(spec, files)
	return err
}

// openBase opens the image that a disk stands on. The disk is unusable on top of any
// other content.
func (d *Store) openBase(field string, was image.Base) (*os.File, error) {
	if was.Source.IsFetched() {
		f, err := d.images.OpenBase(was)
		return f, ContractError(err)
	}
	f, err := d.openSource(field+".source", source.Parse(was.Path))
	if err != nil {
		return nil, err
	}
	if err := checkFile(f, was); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkFile checks a file of the host as it is opened. Size and time identify it. Whoever replaces
// the file can preserve both, so its content must not lead to other files either.
func checkFile(f *os.File, was image.Base) error {
	found, err := image.DescribeFile(f, was.Ref)
	if err == nil && found.HasContentOf(was) {
		return nil
	}
	why := ""
	if err != nil {
		why = ": " + err.Error()
	}
	return unavailableError("image %s was changed or replaced since the server's disk was made on top of it: put it back as it was, its time included%s", was.Path, why)
}

// CheckImage reports whether the image of a disk could be opened now.
func (d *Store) CheckImage(field string, have Disk) error {
	if have.Image.Path == "" {
		return nil
	}
	if have.Image.IsContainer() {
		root, err := d.OpenRoot(have.Image)
		if err != nil {
			return err
		}
		return root.Close()
	}
	f, err := d.openBase(field, have.Image)
	if err != nil {
		return err
	}
	return f.Close()
}

// CheckDirs refuses folders through which a machine could get files of Drover: the disk of
// another machine, with its secrets, or a private key. Folders in always are allowed.
func CheckDirs(imageDirs []string, always string, private []string) error {
	for _, images := range imageDirs {
		if !filepath.IsAbs(images) {
			return fmt.Errorf("--qemu-image-dirs has %q: each must be the absolute path of a folder", images)
		}
		if containsPath(always, images) {
			continue
		}
		for _, own := range private {
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
