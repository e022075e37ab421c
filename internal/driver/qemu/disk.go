// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
	"cloudnative.tw/drover/internal/driver/qemu/imagestore"
)

// disk is a disk that was made, and the image that it stands on.
type disk struct {
	Size  int64 `json:"size"`
	Image image `json:"image"`
}

// image is a file that a disk stands on, as it was when the disk was made.
type image struct {
	imageSettings

	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"`
}

// imageOf is the image that a spec asks for, or the one that is there: a default
// that changes touches no server.
func imageOf(spec driver.ServerSpec, have imageSettings) imageSettings {
	if spec.Image.Source == "" {
		return have
	}
	return imageSettings{spec.Image.Source, spec.Image.Checksum}
}

// imageSettings are what tells one image from another.
type imageSettings struct {
	Source   string `json:"source,omitempty"`
	Checksum string `json:"checksum,omitempty"`
}

// openImage looks at an image that is on this host.
func (d *Driver) openImage(asked imageSettings) (image, error) {
	f, err := d.openFound(asked)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	i, err := describeImage(f)
	if err != nil {
		return image{}, unavailable("image %s: %w", asked.Source, err)
	}
	i.imageSettings, i.Path = asked, sourcePath(asked.Source)
	if imagestore.IsRemote(asked.Source) {
		i.Path = f.Name()
	}
	return i, nil
}

// openFound opens the file of an image: the one that it names, or the one that
// was fetched.
func (d *Driver) openFound(asked imageSettings) (*os.File, error) {
	if !imagestore.IsRemote(asked.Source) {
		return d.openSource("image.source", asked.Source)
	}
	path, there := d.images.Path(driver.Image{Source: asked.Source, Checksum: asked.Checksum})
	if !there {
		return nil, unavailable("image %s has to be fetched first", asked.Source)
	}
	return openFetched(path, asked.Source)
}

func openFetched(path, source string) (*os.File, error) {
	f, err := os.Open(path) //nolint:gosec // in the driver's folder
	if err != nil {
		return nil, unavailable("image %s: %w", source, err)
	}
	return f, nil
}

func unavailable(format string, args ...any) error {
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, format, args...))
}

func sourcePath(source string) string { return strings.TrimPrefix(source, "file://") }

// openSource opens the file that a field of the spec names. It is below one of
// the allowed folders, and no symbolic link leads out of them.
func (d *Driver) openSource(field, source string) (*os.File, error) {
	forms := "it must be the absolute path of a file, or file:// before one"
	if field == "image.source" {
		forms += ", or begin with http://, https:// or oci://"
	}
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

// checkDisks refuses what only the disks at hand can tell.
func (s *server) checkDisks(spec driver.ServerSpec) error {
	const grows = "it may only grow, and the server has"
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < s.Root.Size {
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: %s %d", spec.RootDiskBytes, grows, s.Root.Size)
	}
	for i, v := range spec.Volumes {
		if have := s.Volumes[v.Name].Size; v.SizeBytes < have {
			return driver.Errorf(driver.ErrInvalid, "volumes[%d].size (%s) is %d bytes: %s %d", i, v.Name, v.SizeBytes, grows, have)
		}
	}
	return nil
}

// makeDisk makes a disk on top of an image, or a blank one where none is named.
// Without a size it has the image's.
func (d *Driver) makeDisk(path, field string, asked imageSettings, size int64) (disk, error) {
	if asked.Source == "" {
		return disk{Size: size}, diskimage.CreateQcow2(path, size, nil)
	}
	i, err := d.imageFor(field, asked, size)
	if err != nil {
		return disk{}, err
	}
	size = max(size, i.Size)
	return disk{Size: size, Image: i}, diskimage.CreateQcow2(path, size, &diskimage.Backing{Path: i.Path, Format: i.Format})
}

// imageFor is the image of a disk, which has to be as large at least.
func (d *Driver) imageFor(field string, asked imageSettings, size int64) (image, error) {
	i, err := d.openImage(asked)
	if err == nil && size != 0 && size < i.Size {
		err = driver.Errorf(driver.ErrInvalid, "%s is %d bytes: the image %s needs %d", field, size, i.Path, i.Size)
	}
	return i, err
}

// makeRoot makes a root disk. A kernel that is booted directly may do without an
// image, and without a disk.
func (d *Driver) makeRoot(h home, spec driver.ServerSpec, asked imageSettings) (disk, error) {
	if asked.Source == "" && spec.Image.Kernel != nil && spec.RootDiskBytes == 0 {
		return disk{}, nil
	}
	if asked.Source == "" && spec.Image.Kernel == nil {
		_, err := d.openSource("image.source", asked.Source)
		return disk{}, err
	}
	return d.makeDisk(h.file(rootDiskFile), "resource.rootDisk", asked, spec.RootDiskBytes)
}

// prepareRoot makes sure that the root disk is the one that the spec asks for. A
// new image needs a new disk.
func (d *Driver) prepareRoot(s *server, spec driver.ServerSpec) (*drive, error) {
	if s.needsRoot(spec) {
		if err := d.replaceRoot(s, spec, imageOf(spec, s.Settings.Image)); err != nil {
			return nil, err
		}
	}
	if s.Root.Size == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	return d.driveOf(rootDiskFile, s.Root)
}

func (s *server) needsRoot(spec driver.ServerSpec) bool {
	return s.Root.Image.imageSettings != imageOf(spec, s.Settings.Image) || (s.Root.Size == 0 && spec.RootDiskBytes > 0)
}

// driveOf is how a machine gets a disk.
func (d *Driver) driveOf(path string, have disk) (*drive, error) {
	was := have.Image
	if was.Path == "" {
		return &drive{Path: path}, nil
	}
	if err := d.checkImage(was); err != nil {
		return nil, err
	}
	return &drive{Path: path, Backing: &layer{Path: was.Path, Format: was.Format}}, nil
}

// checkImage : a disk is worth nothing on top of anything but the image that it
// was made on.
func (d *Driver) checkImage(was image) error {
	f, err := d.reopen(was)
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

// reopen opens the image of a disk. What a source stands for may have changed, but
// not what was fetched by it then.
func (d *Driver) reopen(was image) (*os.File, error) {
	if !imagestore.IsRemote(was.Source) {
		return d.openSource("image.source", was.Path)
	}
	return openFetched(was.Path, was.Source)
}

// replaceRoot says first that there is no root disk, so that after a crash none is
// taken for another.
func (d *Driver) replaceRoot(s *server, spec driver.ServerSpec, asked imageSettings) error {
	tmp, err := d.dir.Temp()
	if err != nil {
		return d.dir.Explain(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	root, err := d.makeRoot(home{d.dir, tmp}, spec, asked)
	if err != nil {
		return d.dir.Explain(err)
	}
	s.Root = disk{}
	if err := s.save(s.record); err != nil {
		return d.dir.Explain(err)
	}
	if root.Size > 0 {
		err = os.Rename(filepath.Join(tmp, rootDiskFile), s.file(rootDiskFile))
	} else {
		err = os.RemoveAll(s.file(rootDiskFile))
	}
	s.Root = root
	return d.dir.Explain(errors.Join(err, s.save(s.record)))
}

// prepareVolumes makes the volumes that are not there yet. One that the spec does
// not name any more stays where it is, for the time that it does again.
func (d *Driver) prepareVolumes(s *server, spec driver.ServerSpec) ([]volume, error) {
	volumes := make([]volume, 0, len(spec.Volumes))
	for i, v := range spec.Volumes {
		if _, made := s.Volumes[v.Name]; !made {
			if err := d.makeVolume(s, i, v); err != nil {
				return nil, d.dir.Explain(err)
			}
		}
		root, err := d.driveOf(volumeFile(v.Name), s.Volumes[v.Name])
		if err != nil {
			return nil, err
		}
		root.ReadOnly = v.ReadOnly
		volumes = append(volumes, volume{v.Name, *root})
	}
	return volumes, nil
}

func volumeFile(name string) string { return "volume-" + name + ".qcow2" }

// volumeSize names the field in errors.
func volumeSize(i int, v driver.Volume) string {
	return fmt.Sprintf("volumes[%d].size (%s)", i, v.Name)
}

// makeVolume moves a volume into place before it is written down: one that is
// nobody's yet is replaced.
func (d *Driver) makeVolume(s *server, i int, v driver.Volume) error {
	tmp, err := d.dir.Temp()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	path := filepath.Join(tmp, volumeFile(v.Name))
	made, err := d.makeDisk(path, volumeSize(i, v), imageOfVolume(v), v.SizeBytes)
	if err != nil {
		return err
	}
	if err := os.Rename(path, s.file(volumeFile(v.Name))); err != nil {
		return err
	}
	s.Volumes = maps.Clone(s.Volumes)
	if s.Volumes == nil {
		s.Volumes = map[string]disk{}
	}
	s.Volumes[v.Name] = made
	return s.save(s.record)
}

func imageOfVolume(v driver.Volume) imageSettings {
	if v.Image == nil {
		return imageSettings{}
	}
	return imageSettings{v.Image.Source, v.Image.Checksum}
}

// fetching tells whether a server has to wait for an image that a disk is to be
// made of. What was fetched stays the server's until the caller has no more use
// for it: else one that is always to be fetched would be so twice.
func (d *Driver) fetching(ctx context.Context, s server, spec driver.ServerSpec) (waits bool, err error) {
	var images []driver.Image
	for _, i := range s.newImages(spec, imageSettings{Source: d.Image}) {
		images = append(images, i.Image)
	}
	return d.images.Wait(ctx, spec, images...)
}

// newImage is one that a field of the spec names and that is to be fetched.
type newImage struct {
	field string
	driver.Image
}

// newImages are those, of what has to be fetched, that a disk is still to be made of.
func (s server) newImages(spec driver.ServerSpec, byDefault imageSettings) []newImage {
	have := s.Settings.Image
	if s.ID == "" {
		have = byDefault
	}
	var all []newImage
	if root := imageOf(spec, have); imagestore.IsRemote(root.Source) && s.Root.Image.imageSettings != root {
		all = append(all, newImage{"image", driver.Image{Source: root.Source, Checksum: root.Checksum, PullPolicy: spec.Image.PullPolicy}})
	}
	for i, v := range spec.Volumes {
		if _, made := s.Volumes[v.Name]; !made && v.Image != nil && imagestore.IsRemote(v.Image.Source) {
			all = append(all, newImage{fmt.Sprintf("volumes[%d].source.image", i), *v.Image})
		}
	}
	return all
}

// checkNewImages refuses what could be anything. Disks that were made of such an
// image stay in use, whatever the flag was then.
func (d *Driver) checkNewImages(s server, spec driver.ServerSpec) error {
	for _, i := range s.newImages(spec, imageSettings{Source: d.Image}) {
		if imagestore.IsUnchecked(i.Image) && !d.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.field)
		}
	}
	return nil
}

// checkImages makes sure that the next run finds what it is to be made of, and
// makes nothing.
func (d *Driver) checkImages(s *server, spec driver.ServerSpec) error {
	if _, err := d.kernelOf(spec); err != nil {
		return err
	}
	if err := d.checkRoot(s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		_, err := d.driveOf("", have)
		if !made && v.Image != nil {
			_, err = d.imageFor(volumeSize(i, v), imageOfVolume(v), v.SizeBytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(s *server, spec driver.ServerSpec) error {
	asked := imageOf(spec, s.Settings.Image)
	if !s.needsRoot(spec) {
		_, err := d.driveOf(rootDiskFile, s.Root)
		return err
	}
	if asked.Source == "" && spec.Image.Kernel != nil {
		return nil
	}
	_, err := d.imageFor("resource.rootDisk", asked, spec.RootDiskBytes)
	return err
}

// outgrown are the disks, by QEMU's name for them, that the spec wants larger.
func (s *server) outgrown(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if s.Root.Size > 0 && spec.RootDiskBytes > s.Root.Size {
		sizes[rootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		attached := slices.ContainsFunc(s.Settings.Volumes, func(a volumeSettings) bool { return a.Name == v.Name })
		if have := s.Volumes[v.Name].Size; attached && v.SizeBytes > have {
			sizes[volumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// grow makes disks of a QEMU that is up larger, if the spec does.
func (d *Driver) grow(ctx context.Context, s *server, spec driver.ServerSpec) error {
	sizes := s.outgrown(spec)
	if len(sizes) == 0 {
		return nil
	}
	for node, size := range sizes {
		if err := s.command(ctx, "block_resize", object{"node-name": node, "size": size}, nil); err != nil {
			return err
		}
	}
	s.Root.Size = max(s.Root.Size, sizes[rootNode])
	s.Volumes = maps.Clone(s.Volumes)
	for _, v := range spec.Volumes {
		if size, grown := sizes[volumeNode(v.Name)]; grown {
			made := s.Volumes[v.Name]
			made.Size = size
			s.Volumes[v.Name] = made
		}
	}
	return d.dir.Explain(s.save(s.record))
}
