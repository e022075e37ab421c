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

// describeImage returns the size, format and identity of an image that is on this host.
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

// SourceForms returns the end of an error message: the forms of source that a field allows. The field is the source of
// the root disk's image, or of a volume's image, which must be a disk, or a file of a kernel.
func SourceForms(field string) string {
	forms := "the absolute path of a file, with or without the prefix file://"
	if field == "image.source" {
		forms = "the reference of a container image, " + forms
	}
	if strings.HasSuffix(field, "image.source") {
		forms += ", or begin with cloud://, http://, https:// or oci://"
	}
	return "it must be " + forms
}

// openSource opens the file that a field of the spec names. The file must be below one of the
// allowed folders, and symbolic links must not lead out of that folder.
func (d *Store) openSource(field string, from source.Source) (*os.File, error) {
	forms, path := SourceForms(field), from.Name
	switch {
	case from.Kind == source.None:
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is empty and there is no default: %s", field, forms)
	case from.Kind != source.File || !filepath.IsAbs(path) || strings.ContainsRune(path, 0):
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: %s", field, from, forms)
	case filepath.Clean(path) != path:
		return nil, driver.Errorf(driver.ErrInvalid, "spec.%s is %q: a path must not contain // or the elements . and ..", field, from)
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
	// Without O_NONBLOCK the open of a named pipe would wait for its other end.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := diskimage.CheckRegular(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenKernel opens the kernel and the initrd of a machine that boots a kernel directly.
func (d *Store) OpenKernel(spec driver.ServerSpec, files *launch.Files) (*launch.Kernel, error) {
	k := spec.Image.Kernel
	if k == nil {
		return nil, nil //nolint:nilnil // Nil means that the machine boots from its disk.
	}
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

// openLoaded opens a file that QEMU loads into the guest's memory. left is the number of bytes of that memory that the
// other files leave. openLoaded rejects a larger file. This also bounds the copy that a run may keep on the host's disk.
func (d *Store) openLoaded(field, path string, left *int64) (*os.File, error) {
	f, err := d.openSource(field, source.Parse(path))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() > *left {
		err = driver.Errorf(driver.ErrInvalid, "spec.%s is %q, which has %d bytes: kernel and initrd must fit into spec.resource.memory, of which %d bytes are left for this file", field, path, info.Size(), *left)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	*left -= info.Size()
	return f, nil
}

// CheckKernel returns an error if the kernel or the initrd could not be opened now.
func (d *Store) CheckKernel(spec driver.ServerSpec) error {
	files := &launch.Files{}
	defer files.Close()
	_, err := d.OpenKernel(spec, files)
	return err
}

// openBase opens the image that a disk is based on, and checks that its content has not
// changed: the disk is unusable on top of any other content.
func (d *Store) openBase(field string, recorded image.Base) (*os.File, error) {
	if recorded.Source.IsFetched() {
		f, err := d.images.OpenBase(recorded)
		return f, ContractError(err)
	}
	f, err := d.openSource(field+".source", source.Parse(recorded.Path))
	if err != nil {
		return nil, err
	}
	if err := checkUnchanged(f, recorded); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkUnchanged checks that an opened file is still the recorded image, by its size and time. A user
// can forge both. So DescribeFile also rejects content that refers to other files.
func checkUnchanged(f *os.File, recorded image.Base) error {
	found, err := image.DescribeFile(f, recorded.Ref)
	if err == nil && found.HasContentOf(recorded) {
		return nil
	}
	cause := ""
	if err != nil {
		cause = ": " + err.Error()
	}
	return unavailableError("image %s was changed or replaced since the server's disk was made on top of it: put it back as it was, its time included%s", recorded.Path, cause)
}

// CheckImage returns an error if the image of a disk could not be opened now.
func (d *Store) CheckImage(field string, disk Disk) error {
	if disk.Image.Path == "" {
		return nil
	}
	if disk.Image.IsContainer() {
		root, err := d.OpenRoot(disk.Image)
		if err != nil {
			return err
		}
		return root.Close()
	}
	f, err := d.openBase(field, disk.Image)
	if err != nil {
		return err
	}
	return f.Close()
}

// CheckDirs rejects folders of images through which a machine could read private files of Drover:
// the disk of another machine, with its secrets, or a private key. It accepts folders in allowedDir.
func CheckDirs(imageDirs []string, allowedDir string, privateDirs []string) error {
	for _, dir := range imageDirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("--qemu-image-dirs has %q: each must be the absolute path of a folder", dir)
		}
		if containsPath(allowedDir, dir) {
			continue
		}
		for _, private := range privateDirs {
			if containsPath(dir, private) || containsPath(private, dir) {
				return fmt.Errorf("--qemu-image-dirs has %q: it must not hold, or be in, %s, where Drover keeps disks and secrets; %s is allowed always",
					dir, private, allowedDir)
			}
		}
	}
	return nil
}

// containsPath reports whether a path is the folder dir or below it, with symbolic links
// resolved.
func containsPath(dir, path string) bool {
	name, err := filepath.Rel(resolveLinks(filepath.Clean(dir)), resolveLinks(filepath.Clean(path)))
	return err == nil && filepath.IsLocal(name)
}

// resolveLinks resolves symbolic links in the part of the path that exists.
func resolveLinks(path string) string {
	resolved, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(resolveLinks(parent), filepath.Base(path))
	}
	if err != nil {
		return path
	}
	return resolved
}
