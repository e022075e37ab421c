// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/egress"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Names in the folder of a disk.
const (
	// rootName and volumeName are folders with a disk and its record. Such a folder appears in one
	// rename, so a disk is always complete and has its record.
	rootName   = "root"
	volumeName = "volume"
	diskFile   = "disk"
	recordFile = "disk.json"
	// overlayFile is an ephemeral root disk on top of its image.
	overlayFile = "overlay.qcow2"
	tempPrefix  = ".drover-machine-"
)

// record describes a disk. It has the format, since the content is not reliable: a guest could
// write the header of another format to a raw disk.
type record struct {
	format.Header

	Format string `json:"format"` // empty if the disk does not exist yet
	// MachineType is the machine type with which a root disk was first used. A machine keeps its
	// type, since another type has other hardware.
	MachineType string `json:"machineType,omitempty"`
}

// diskFolder is the described folder of a disk, and the name of the folder in it that has the disk.
type diskFolder struct{ path, name string }

// filePath returns the path of the folder that has the disk, or of a file in it.
func (f diskFolder) filePath(names ...string) string {
	return filepath.Join(append([]string{f.path, f.name}, names...)...)
}

// stagingFolder is where a disk is made before it is renamed.
func (f diskFolder) stagingFolder() atomicfile.Folder {
	return atomicfile.Folder{Path: f.path, Prefix: tempPrefix}
}

// findDisk returns the record of the disk, nil if there is no disk. It removes an unfinished disk of
// an interrupted run.
func (f diskFolder) findDisk() (*record, error) {
	found, err := f.readRecord()
	if err != nil {
		return nil, err
	}
	if err := f.stagingFolder().Sweep(); err != nil {
		return nil, fmt.Errorf("removing an unfinished disk: %w", err)
	}
	return found, nil
}

// readRecord returns the record of the disk, nil if there is no disk. It fails for an invalid
// record: the disk may hold data, and must not be made again.
func (f diskFolder) readRecord() (*record, error) {
	if _, err := os.Lstat(f.filePath()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // There is no disk.
	}
	content, err := description.ReadLimited(f.filePath(recordFile))
	if err != nil {
		return nil, fmt.Errorf("the record of the disk cannot be read: repair %s, or remove it with its disk: %w", f.filePath(), err)
	}
	r, err := format.Decode[record](content)
	if _, isLater := errors.AsType[*format.UnknownError](err); isLater {
		return nil, fmt.Errorf("%s: %w", f.filePath(recordFile), err)
	}
	if err != nil || r.Format == "" {
		return nil, fmt.Errorf("repair %s: it must be a record with the format of the disk: %.200s", f.filePath(recordFile), content)
	}
	return &r, nil
}

// makeDisk makes the disk, blank or with its image. copyImage copies the image to a new file, and
// returns its format.
func (f diskFolder) makeDisk(d *description.Disk, machineType string, copyImage func(path string) (format string, err error)) (*record, error) {
	tmp, remove, err := f.stagingFolder().MakeFolder()
	if err != nil {
		return nil, err
	}
	defer remove()
	r := &record{Format: diskimage.Qcow2, MachineType: machineType}
	if d.Image == "" {
		err = diskimage.CreateQcow2(filepath.Join(tmp, diskFile), d.SizeBytes, nil)
	} else {
		r.Format, err = copyImage(filepath.Join(tmp, diskFile))
	}
	if err != nil {
		return nil, err
	}
	content, err := format.Encode(*r)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(tmp, recordFile), content, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, f.filePath()); err != nil {
		return nil, err
	}
	return r, atomicfile.SyncFolder(f.path)
}

// openDisk opens the disk for QEMU.
func (f diskFolder) openDisk(r *record, readOnly bool, files *launch.Files) (*launch.Drive, error) {
	path, forQEMU, open := f.filePath(diskFile), "", diskimage.OpenDisk
	if r.Format == diskimage.Raw {
		forQEMU, open = diskimage.Raw, diskimage.OpenRegular
	}
	disk, err := open(path, readOnly)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", path, err)
	}
	return &launch.Drive{FD: files.Add(disk), Format: forQEMU, ReadOnly: readOnly}, nil
}

// openOverlay makes an ephemeral disk, and opens it and the image below it, if it has one.
func openOverlay(d *description.Disk, files *launch.Files) (*launch.Drive, error) {
	path := filepath.Join(d.Folder, overlayFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if d.Image == "" {
		if err := diskimage.CreateQcow2(path, d.SizeBytes, nil); err != nil {
			return nil, err
		}
		disk, err := diskimage.OpenDisk(path, false)
		return &launch.Drive{FD: files.Add(disk)}, err
	}
	image, info, err := openImage(d)
	if err != nil {
		return nil, err
	}
	layer := &launch.Layer{FD: files.Add(image), Format: info.Format}
	if err := diskimage.CreateQcow2(path, max(info.Size, d.SizeBytes), &diskimage.Backing{Path: d.Image, Format: info.Format}); err != nil {
		return nil, err
	}
	disk, err := diskimage.OpenDisk(path, false)
	if err != nil {
		return nil, err
	}
	return &launch.Drive{FD: files.Add(disk), Backing: layer}, nil
}

// prepareRoot opens the root disk, and makes it if it is missing or ephemeral. It returns the machine
// type of the disk's record, or else the newest type.
func (r *run) prepareRoot(ctx context.Context, chooseType func(pinned string) (string, error), files *launch.Files) (machineType string, root *launch.Drive, err error) {
	if r.description.RootDisk == nil {
		machineType, err = chooseType("")
		return machineType, nil, err
	}
	if r.description.RootDisk.Ephemeral && !r.description.RootDisk.NeedsCopy() {
		if machineType, err = chooseType(""); err != nil {
			return "", nil, err
		}
		root, err = openOverlay(&r.description.RootDisk.Disk, files)
		return machineType, root, err
	}
	folder := diskFolder{r.description.RootDisk.Folder, rootName}
	if r.description.RootDisk.Ephemeral {
		if err := os.RemoveAll(folder.filePath()); err != nil {
			return "", nil, err
		}
	}
	found, err := folder.findDisk()
	if err != nil {
		return "", nil, err
	}
	pinned := ""
	if found != nil {
		pinned = found.MachineType
	}
	if machineType, err = chooseType(pinned); err != nil {
		return "", nil, err
	}
	root, err = r.ensureDisk(ctx, folder, &r.description.RootDisk.Disk, cmp.Or(found, &record{MachineType: machineType}), false, files)
	r.found.addDisks(func(d *disks) { d.Root = err == nil })
	return machineType, root, err
}

// prepareVolumes opens the volumes, and makes missing ones.
func (r *run) prepareVolumes(ctx context.Context, files *launch.Files) ([]launch.Volume, error) {
	var all []launch.Volume
	for i := range r.description.Volumes {
		v := &r.description.Volumes[i]
		folder := diskFolder{v.Folder, volumeName}
		found, err := folder.findDisk()
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		drive, err := r.ensureDisk(ctx, folder, &v.Disk, cmp.Or(found, &record{}), v.ReadOnly, files)
		if tooLarge, ok := errors.AsType[*imageSizeError](err); ok {
			tooLarge.Volume = v.Name
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		r.found.addDisks(func(d *disks) { d.Volumes = append(d.Volumes, v.Name) })
		all = append(all, launch.Volume{Name: v.Name, Drive: *drive})
	}
	return all, nil
}

// ensureDisk opens a disk. It makes the disk first if the record lacks a format.
func (r *run) ensureDisk(ctx context.Context, folder diskFolder, d *description.Disk, diskRecord *record, readOnly bool, files *launch.Files) (*launch.Drive, error) {
	if diskRecord.Format == "" && d.MustExist {
		return nil, fmt.Errorf("the disk %s was made by an earlier run, and is missing: the volume is empty or another volume, and no new disk is made in its place", folder.filePath())
	}
	if diskRecord.Format == "" {
		r.log.Info("Making a disk", "folder", folder.filePath(), "image", egress.Redact(d.Image))
		var err error
		diskRecord, err = folder.makeDisk(d, diskRecord.MachineType, func(path string) (string, error) { return r.copyImageTo(ctx, d, path) })
		if err != nil {
			return nil, fmt.Errorf("making the disk %s: %w", folder.filePath(), err)
		}
	}
	return folder.openDisk(diskRecord, readOnly, files)
}
