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
	"strconv"
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

// image is a file that a disk stands on, as it was when the disk was made. One that
// was fetched is in the store, wherever that is by now: of its path, only the name
// counts, which tells its content.
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

// isSame tells whether what is asked for is the image that a disk stands on. It is
// if that has the same digest, however it is named now: what the guest wrote is
// not thrown away for a checksum that was added, or another server that has the
// same.
func (d *Driver) isSame(have image, asked imageSettings) bool {
	switch {
	case have.imageSettings == asked:
		return true
	case asked.Source == "" || imagestore.IsRemote(have.Source) != imagestore.IsRemote(asked.Source):
		return false
	case !imagestore.IsRemote(asked.Source):
		return sourcePath(asked.Source) == have.Path
	}
	return d.images.Digest(driver.Image{Source: asked.Source, Checksum: asked.Checksum}) == imagestore.DigestOf(have.Path)
}

// rootField is the field that names the image of the root disk.
const rootField = "image"

// volumeField is the one that names the image of a volume.
func volumeField(i int) string { return fmt.Sprintf("volumes[%d].source.image", i) }

// openImage looks at an image that is on this host.
func (d *Driver) openImage(ctx context.Context, field string, asked imageSettings) (image, error) {
	f, err := d.openFound(field, asked)
	if err != nil {
		return image{}, err
	}
	defer func() { _ = f.Close() }()
	i, err := describeImage(ctx, f, asked)
	if err != nil {
		return image{}, unavailable("image %s: %w", asked.Source, err)
	}
	return i, nil
}

// openFound opens the file of an image: the one that it names, or the one that
// was fetched.
func (d *Driver) openFound(field string, asked imageSettings) (*os.File, error) {
	if !imagestore.IsRemote(asked.Source) {
		return d.openSource(field+".source", asked.Source)
	}
	path, there := d.images.Path(driver.Image{Source: asked.Source, Checksum: asked.Checksum})
	if !there {
		return nil, unavailable("image %s has to be fetched first", asked.Source)
	}
	f, err := os.Open(path) //nolint:gosec // in the driver's folder
	if err != nil {
		return nil, unavailable("image %s: %w", asked.Source, err)
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
	if strings.HasSuffix(field, "image.source") {
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
	// In order, so that of two that are missing the same one is told each time.
	type named struct{ field, source string }
	files := []named{{"image.kernel.source", k.Source}}
	if k.Initrd != "" {
		files = append(files, named{"image.kernel.initrd", k.Initrd})
	}
	for _, file := range files {
		f, err := d.openSource(file.field, file.source)
		if err != nil {
			return nil, err
		}
		_ = f.Close()
	}
	return &kernel{Path: sourcePath(k.Source), Initrd: sourcePath(k.Initrd), Cmdline: k.Cmdline}, nil
}

func describeImage(ctx context.Context, f *os.File, asked imageSettings) (image, error) {
	info, err := f.Stat()
	if err != nil {
		return image{}, err
	}
	i := image{imageSettings: asked, Path: sourcePath(asked.Source)}
	if imagestore.IsRemote(asked.Source) {
		i.Path = filepath.Base(f.Name())
	}
	i.Stamp = i.stampOf(info)
	probed, err := diskimage.Probe(ctx, f, info.Size())
	i.Format, i.Size = probed.Format, probed.Size
	return i, err
}

// stampOf changes when the image's file does, and not when that is copied with its
// times, as from a backup. A file of the store may have been fetched again, and is
// named after its content, but it may have been cut off.
func (i image) stampOf(info fs.FileInfo) string {
	if imagestore.IsRemote(i.Source) {
		return strconv.FormatInt(info.Size(), 10)
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
}

// fetched is the image, which is in the store, as it is fetched again: by its
// digest, whatever its source stands for by now.
func (i image) fetched(policy driver.PullPolicy) driver.Image {
	return driver.Image{Source: i.Source, Checksum: imagestore.DigestOf(i.Path), PullPolicy: policy}
}

// checkDisks refuses what only the disks at hand can tell.
func (s *server) checkDisks(spec driver.ServerSpec) error {
	const grows = "it may only grow, and the server has"
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < s.Root.Size {
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: %s %d", spec.RootDiskBytes, grows, s.Root.Size)
	}
	for i, v := range spec.Volumes {
		switch have := s.Volumes[v.Name].Size; {
		case v.SizeBytes < have:
			return driver.Errorf(driver.ErrInvalid, "volumes[%d].size (%s) is %d bytes: %s %d", i, v.Name, v.SizeBytes, grows, have)
		case have > 0 && v.SizeBytes > have && v.ReadOnly:
			return driver.Errorf(driver.ErrUnsupported, "volumes[%d].size (%s) is %d bytes: what is readOnly cannot grow, and the server has %d: leave readOnly out until it has grown",
				i, v.Name, v.SizeBytes, have)
		}
	}
	return nil
}

// order is what a disk is to be, and the fields that say so.
type order struct {
	imageField, sizeField string
	image                 imageSettings
	size                  int64
}

// makeDisk makes a disk on top of an image, or a blank one where none is named.
// Without a size it has the image's.
func (d *Driver) makeDisk(ctx context.Context, path string, o order) (disk, error) {
	if o.image.Source == "" {
		return disk{Size: o.size}, diskimage.CreateQcow2(path, o.size, nil)
	}
	i, err := d.imageFor(ctx, o)
	if err != nil {
		return disk{}, err
	}
	size := max(o.size, i.Size)
	return disk{Size: size, Image: i}, diskimage.CreateQcow2(path, size, &diskimage.Backing{Path: d.pathOf(i), Format: i.Format})
}

// imageFor is the image of a disk, which has to be as large at least.
func (d *Driver) imageFor(ctx context.Context, o order) (image, error) {
	i, err := d.openImage(ctx, o.imageField, o.image)
	if err == nil && o.size != 0 && o.size < i.Size {
		err = driver.Errorf(driver.ErrInvalid, "%s is %d bytes: the image %s needs %d", o.sizeField, o.size, i.Source, i.Size)
	}
	return i, err
}

// makeRoot makes a root disk. A kernel that is booted directly may do without an
// image, and without a disk.
func (d *Driver) makeRoot(ctx context.Context, h home, spec driver.ServerSpec, asked imageSettings) (disk, error) {
	if asked.Source == "" && spec.Image.Kernel != nil && spec.RootDiskBytes == 0 {
		return disk{}, nil
	}
	if asked.Source == "" && spec.Image.Kernel == nil {
		_, err := d.openFound(rootField, asked)
		return disk{}, err
	}
	return d.makeDisk(ctx, h.file(rootDiskFile), rootOrder(spec, asked))
}

func rootOrder(spec driver.ServerSpec, asked imageSettings) order {
	return order{rootField, "resource.rootDisk", asked, spec.RootDiskBytes}
}

// prepareRoot makes sure that the root disk is the one that the spec asks for. A
// new image needs a new disk.
func (d *Driver) prepareRoot(ctx context.Context, s *server, spec driver.ServerSpec) (*drive, error) {
	asked := imageOf(spec, s.Settings.Image)
	if d.needsRoot(s, spec) {
		if err := d.replaceRoot(ctx, s, spec, asked); err != nil {
			return nil, err
		}
	}
	s.Root.Image.imageSettings = asked
	if s.Root.Size == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	return d.driveOf(rootField, rootDiskFile, s.Root)
}

func (d *Driver) needsRoot(s *server, spec driver.ServerSpec) bool {
	return !d.isSame(s.Root.Image, imageOf(spec, s.Settings.Image)) || (s.Root.Size == 0 && spec.RootDiskBytes > 0)
}

// driveOf is how a machine gets a disk, whose image the field names.
func (d *Driver) driveOf(field, path string, have disk) (*drive, error) {
	was := have.Image
	if was.Path == "" {
		return &drive{Path: path}, nil
	}
	if err := d.checkImage(field, was); err != nil {
		return nil, err
	}
	return &drive{Path: path, Backing: &layer{Path: d.pathOf(was), Format: was.Format}}, nil
}

// pathOf is where an image is now.
func (d *Driver) pathOf(i image) string {
	if !imagestore.IsRemote(i.Source) {
		return i.Path
	}
	path, _ := d.images.Path(i.fetched(""))
	return path
}

// checkImage : a disk is worth nothing on top of anything but the image that it
// was made on.
func (d *Driver) checkImage(field string, was image) error {
	f, err := d.reopen(field, was)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return unavailable("image %s: %w", was.Path, err)
	}
	switch {
	case was.stampOf(info) == was.Stamp:
		return nil
	case imagestore.IsRemote(was.Source):
		return unavailable("image %s was cut off or changed in %s: remove that file, and it is fetched again", was.Source, d.pathOf(was))
	}
	return unavailable("image %s was changed or replaced since the server's disk was made on top of it: put it back as it was, its time included", was.Path)
}

// reopen opens the image of a disk. What a source stands for may have changed, but
// not what was fetched by it then.
func (d *Driver) reopen(field string, was image) (*os.File, error) {
	if !imagestore.IsRemote(was.Source) {
		return d.openFound(field, imageSettings{Source: was.Path})
	}
	return d.openFound(field, imageSettings{was.Source, was.fetched("").Checksum})
}

// replaceRoot says first that there is no root disk, so that after a crash none is
// taken for another.
func (d *Driver) replaceRoot(ctx context.Context, s *server, spec driver.ServerSpec, asked imageSettings) error {
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return d.dir.Explain(err)
	}
	defer remove()
	root, err := d.makeRoot(ctx, home{d.dir, tmp}, spec, asked)
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
func (d *Driver) prepareVolumes(ctx context.Context, s *server, spec driver.ServerSpec) ([]volume, error) {
	volumes := make([]volume, 0, len(spec.Volumes))
	for i, v := range spec.Volumes {
		if _, made := s.Volumes[v.Name]; !made {
			if err := d.makeVolume(ctx, s, i, v); err != nil {
				return nil, d.dir.Explain(err)
			}
		}
		attached, err := d.driveOf(volumeField(i), volumeFile(v.Name), s.Volumes[v.Name])
		if err != nil {
			return nil, err
		}
		attached.ReadOnly = v.ReadOnly
		volumes = append(volumes, volume{v.Name, *attached})
	}
	return volumes, nil
}

func volumeFile(name string) string { return "volume-" + name + ".qcow2" }

func volumeOrder(i int, v driver.Volume) order {
	return order{volumeField(i), fmt.Sprintf("volumes[%d].size (%s)", i, v.Name), imageOfVolume(v), v.SizeBytes}
}

// makeVolume moves a volume into place before it is written down: one that is
// nobody's yet is replaced.
func (d *Driver) makeVolume(ctx context.Context, s *server, i int, v driver.Volume) error {
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	path := filepath.Join(tmp, volumeFile(v.Name))
	made, err := d.makeDisk(ctx, path, volumeOrder(i, v))
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
	for _, i := range d.imagesOf(s, spec) {
		images = append(images, i.Image)
	}
	return d.images.Wait(ctx, spec, images...)
}

// namedImage is one that has to be fetched if it is not there, and the field that
// names it.
type namedImage struct {
	field string
	driver.Image
}

// imagesOf are those, of what is fetched, that a server's next run needs: as the
// spec names them where a disk is still to be made of one, and else by their digest.
func (d *Driver) imagesOf(s server, spec driver.ServerSpec) []namedImage {
	all := []namedImage{{rootField, d.rootImage(s, spec)}}
	for i, v := range spec.Volumes {
		var asked driver.Image
		if v.Image != nil {
			asked = *v.Image
		}
		if made, is := s.Volumes[v.Name]; is {
			asked = made.Image.fetched(asked.PullPolicy)
		}
		all = append(all, namedImage{volumeField(i), asked})
	}
	return slices.DeleteFunc(all, func(i namedImage) bool { return !imagestore.IsRemote(i.Source) })
}

func (d *Driver) rootImage(s server, spec driver.ServerSpec) driver.Image {
	have := s.Settings.Image
	if s.ID == "" {
		have = imageSettings{Source: d.Image}
	}
	asked := imageOf(spec, have)
	image := driver.Image{Source: asked.Source, Checksum: asked.Checksum, PullPolicy: spec.Image.PullPolicy}
	if d.isSame(s.Root.Image, asked) {
		image.Checksum = imagestore.DigestOf(s.Root.Image.Path)
	}
	return image
}

// checkNewImages refuses what could be anything. Disks that were made of such an
// image stay in use, whatever the flag was then.
func (d *Driver) checkNewImages(s server, spec driver.ServerSpec) error {
	for _, i := range d.imagesOf(s, spec) {
		if imagestore.IsUnchecked(i.Image) && !d.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.field)
		}
	}
	return nil
}

// checkImages makes sure that the next run finds what it is to be made of, and
// makes nothing.
func (d *Driver) checkImages(ctx context.Context, s *server, spec driver.ServerSpec) error {
	if _, err := d.kernelOf(spec); err != nil {
		return err
	}
	if err := d.checkRoot(ctx, s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		_, err := d.driveOf(volumeField(i), "", have)
		if !made && v.Image != nil {
			_, err = d.imageFor(ctx, volumeOrder(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(ctx context.Context, s *server, spec driver.ServerSpec) error {
	asked := imageOf(spec, s.Settings.Image)
	if !d.needsRoot(s, spec) {
		_, err := d.driveOf(rootField, rootDiskFile, s.Root)
		return err
	}
	if asked.Source == "" && spec.Image.Kernel != nil {
		return nil
	}
	_, err := d.imageFor(ctx, rootOrder(spec, asked))
	return err
}

// outgrown are the disks, by QEMU's name for them, that the spec wants larger and
// that can be, as they are attached now.
func (s *server) outgrown(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if s.Root.Size > 0 && spec.RootDiskBytes > s.Root.Size {
		sizes[rootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		writable := slices.ContainsFunc(s.Settings.Volumes, func(a volumeSettings) bool { return a.Name == v.Name && !a.ReadOnly })
		if have := s.Volumes[v.Name].Size; writable && v.SizeBytes > have {
			sizes[volumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// sector is what the sizes of disks are whole numbers of, in QEMU.
const sector = 512

// grow makes disks of a QEMU that is up larger, if the spec does.
func (d *Driver) grow(ctx context.Context, s *server, spec driver.ServerSpec) error {
	sizes := s.outgrown(spec)
	if len(sizes) == 0 {
		return nil
	}
	for node, size := range sizes {
		whole := (size + sector - 1) / sector * sector
		if err := s.command(ctx, "block_resize", object{"node-name": node, "size": whole}, nil); err != nil {
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
