// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Names in the folder of the root disk.
const (
	// rootFolder has the disk and its record. Both get there in one rename, so a disk is whole
	// and has its record, or there is none.
	rootFolder = "root"
	diskFile   = "disk"
	recordFile = "disk.json"
	// overlayFile is the disk of an ephemeral machine.
	overlayFile = "overlay.qcow2"
	tempPrefix  = ".drover-machine-"
)

// recordVersion is the version of the records that this program writes and reads.
const recordVersion = 1

// record is what is kept of a disk. The guest could write the header of another format to a
// raw disk, so the format is not determined again.
type record struct {
	Version int    `json:"version"`
	Format  string `json:"format"`
	// MachineType is what the machine was made as: another type has other hardware.
	MachineType string `json:"machineType"`
}

// diskFolder is the folder of a root disk.
type diskFolder struct{ path string }

func (f diskFolder) file(names ...string) string {
	return filepath.Join(append([]string{f.path}, names...)...)
}

// staging is where disks are made before they are moved to their place.
func (f diskFolder) staging() atomicfile.Folder {
	return atomicfile.Folder{Path: f.path, Prefix: tempPrefix}
}

// readRecord returns the record of the disk; nil if there is no disk. A disk that cannot be
// understood is an error, and never made again: it may hold data.
func (f diskFolder) readRecord() (*record, error) {
	if _, err := os.Lstat(f.file(rootFolder)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	content, err := description.ReadLimited(f.file(rootFolder, recordFile))
	if err != nil {
		return nil, fmt.Errorf("the record of the disk cannot be read: repair %s, or remove it with its disk: %w", f.file(rootFolder), err)
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil || r.Version != recordVersion {
		return nil, fmt.Errorf("repair %s: it must be a record of version %d: %.200s", f.file(rootFolder, recordFile), recordVersion, content)
	}
	return &r, nil
}

// makeDisk makes the disk, as a copy of the image or blank.
func (f diskFolder) makeDisk(ctx context.Context, d *description.RootDisk, machineType string) (*record, error) {
	tmp, remove, err := f.staging().MakeFolder()
	if err != nil {
		return nil, err
	}
	defer remove()
	r := &record{Version: recordVersion, Format: diskimage.Qcow2, MachineType: machineType}
	if d.Image == "" {
		err = diskimage.CreateQcow2(filepath.Join(tmp, diskFile), d.SizeBytes, nil)
	} else {
		r.Format, err = copyImage(ctx, d.Image, filepath.Join(tmp, diskFile))
	}
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(filepath.Join(tmp, recordFile), append(content, '\n'), 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, f.file(rootFolder)); err != nil {
		return nil, err
	}
	return r, atomicfile.SyncFolder(f.path)
}

// openDisk opens the disk for QEMU.
func (f diskFolder) openDisk(r *record, files *launch.Files) (*launch.Drive, error) {
	path := f.file(rootFolder, diskFile)
	if r.Format != diskimage.Raw {
		disk, err := diskimage.OpenDisk(path, false)
		if err != nil {
			return nil, fmt.Errorf("disk %s: %w", path, err)
		}
		return &launch.Drive{FD: files.Add(disk)}, nil
	}
	disk, err := diskimage.OpenRegular(path, false)
	if err != nil {
		return nil, fmt.Errorf("disk %s: %w", path, err)
	}
	return &launch.Drive{FD: files.Add(disk), Format: diskimage.Raw}, nil
}

// openOverlay makes an ephemeral disk on top of the image, and opens both.
func (f diskFolder) openOverlay(d *description.RootDisk, files *launch.Files) (*launch.Drive, error) {
	path := f.file(overlayFile)
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
	image, info, err := openImage(d.Image)
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

// findImage returns the file of an image: the only one, if the path is a folder, as in container
// disks.
func findImage(path string) (string, error) {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return path, nil
	case err != nil:
		return "", err
	case len(entries) != 1:
		return "", fmt.Errorf("the folder has %d files: it must have one", len(entries))
	}
	return filepath.Join(path, entries[0].Name()), nil
}

// openImage opens an image and determines what it is.
func openImage(path string) (*os.File, diskimage.Info, error) {
	file, err := findImage(path)
	var f *os.File
	if err == nil {
		f, err = diskimage.OpenRegular(file, true)
	}
	if err != nil {
		return nil, diskimage.Info{}, fmt.Errorf("image %s: %w", path, err)
	}
	stat, err := f.Stat()
	var info diskimage.Info
	if err == nil {
		info, err = diskimage.Probe(f, stat.Size())
	}
	if err != nil {
		return nil, info, errors.Join(fmt.Errorf("image %s: %w", path, err), f.Close())
	}
	return f, info, nil
}

// copyImage copies an image with the holes that it may have, and returns its format. When it
// returns, the copy is on disk.
func copyImage(ctx context.Context, from, to string) (format string, err error) {
	image, info, err := openImage(from)
	if err != nil {
		return "", err
	}
	defer func() { _ = image.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // in the disk's folder
	if err != nil {
		return "", err
	}
	length, err := copySparse(ctx, out, image)
	if err == nil {
		err = errors.Join(out.Truncate(length), out.Sync())
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return "", fmt.Errorf("copying image %s: %w", from, err)
	}
	return info.Format, nil
}

// copySparse copies all but zeros, and returns the length of the source.
func copySparse(ctx context.Context, to io.WriterAt, from io.Reader) (length int64, err error) {
	const block = 64 << 10
	buffer, zeros := make([]byte, block), make([]byte, block)
	for {
		if ctx.Err() != nil {
			return length, context.Cause(ctx)
		}
		n, err := io.ReadFull(from, buffer)
		if n > 0 && !bytes.Equal(buffer[:n], zeros[:n]) {
			if _, err := to.WriteAt(buffer[:n], length); err != nil {
				return length, err
			}
		}
		length += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return length, nil
		}
		if err != nil {
			return length, err
		}
	}
}
