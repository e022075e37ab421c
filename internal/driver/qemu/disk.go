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

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
)

// disk is a disk that was made, and the image that it stands on.
type disk struct {
	Size  int64 `json:"size"`
	Image image `json:"image"`
}

// rootField is the field that names the image of the root disk.
const rootField = "image"

// volumeField is the one that names the image of a volume.
func volumeField(i int) string { return fmt.Sprintf("volumes[%d].source.image", i) }

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

// replaceRoot says first that there is no root disk, so that after a crash none is
// taken for another. The old one stays aside until a run with the new one begins:
// a start that fails, for whatever reason, costs nobody a disk.
func (d *Driver) replaceRoot(ctx context.Context, s *server, spec driver.ServerSpec, asked imageSettings) error {
	tmp, remove, err := d.dir.Temp()
	if err != nil {
		return d.dir.Explain(err)
	}
	defer remove()
	root, err := d.otherRoot(ctx, s, home{d.dir, tmp}, spec, asked)
	if err != nil {
		return d.dir.Explain(err)
	}
	if err := s.keepOldRoot(); err != nil {
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

// otherRoot is the root disk before this one, where that is asked for again, or a
// new one.
func (d *Driver) otherRoot(ctx context.Context, s *server, tmp home, spec driver.ServerSpec, asked imageSettings) (disk, error) {
	if !d.wasRoot(*s, asked) {
		return d.makeRoot(ctx, tmp, spec, asked)
	}
	return *s.Old, os.Link(s.file(oldRootFile), tmp.file(rootDiskFile))
}

// wasRoot tells whether the root disk before this one stands on an image.
func (d *Driver) wasRoot(s server, asked imageSettings) bool {
	return s.Old != nil && d.isSame(s.Old.Image, asked)
}

// keepOldRoot leaves the root disk aside that a guest had last. One that none has
// had yet is no loss.
func (s *server) keepOldRoot() error {
	if s.Old != nil || s.Root.Size == 0 {
		return nil
	}
	if err := os.Remove(s.file(oldRootFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	old := s.Root
	s.Old = &old
	return os.Link(s.file(rootDiskFile), s.file(oldRootFile))
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
