// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/source"
)

// Base describes an image as it was when a disk was made on top of it. Machines' records
// contain it. The zero value is for disks without an image.
type Base struct {
	Ref

	// Path of the image's file. Of a fetched image it is the name only, which identifies the
	// content, wherever the store is now.
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"`
}

// FormatRoot is the format of the roots of container images.
const FormatRoot = "erofs"

// IsContainer reports whether the image is a container image, whose files the guest sees below
// its disk.
func (b Base) IsContainer() bool { return b.Format == FormatRoot }

// Digest returns the digest of an image that was fetched, whatever its source stands for by now;
// others have none.
func (b Base) Digest() string {
	if !b.Source.IsFetched() || b.Path == "" {
		return ""
	}
	return DigestOf(b.Path)
}

// FetchedRef returns the reference by which the image is fetched again: by its digest, whatever
// its source stands for by now.
func (b Base) FetchedRef() Ref { return Ref{b.Source, DigestOf(b.Path)} }

// Describe names the image for people, by its digest where that is known.
func (b Base) Describe() string {
	switch {
	case b.Source.Kind == source.None:
		return "no image"
	case b.Source.IsFetched():
		return b.FetchedRef().Describe()
	}
	return b.Source.String()
}

// HasContentOf reports whether two descriptions of one file are of the same content. The path
// and the reference do not count, since the file may have been moved.
func (b Base) HasContentOf(other Base) bool {
	other.Path, other.Ref = b.Path, b.Ref
	return b == other
}

// DescribeFile describes an open file as the image of a reference.
func DescribeFile(f *os.File, ref Ref) (Base, error) {
	info, err := f.Stat()
	if err != nil {
		return Base{}, err
	}
	probed, err := diskimage.Probe(f, info.Size())
	b := Base{Ref: ref, Path: ref.Source.Name, Format: probed.Format, Size: probed.Size}
	if ref.Source.IsFetched() {
		// The file is named after its content and may have been fetched again, so only
		// truncation shows in its stamp.
		b.Path, b.Stamp = filepath.Base(f.Name()), sizeStamp(info)
	} else {
		// The stamp changes when the file does, and not when the file is copied with its times,
		// as from a backup.
		b.Stamp = fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
	}
	return b, err
}

func sizeStamp(info fs.FileInfo) string { return strconv.FormatInt(info.Size(), 10) }

// Describe describes an image that was fetched, as its file is now. It fails with ErrUnavailable
// if the image has to be fetched first.
func (s *Store) Describe(ref Ref) (Base, error) {
	if ref.Source.IsContainer() {
		root, err := s.OpenRoot(ref)
		if err == nil {
			return Base{Ref: ref, Path: root.Name, Format: FormatRoot, Size: root.Size, Stamp: strconv.FormatInt(root.Size, 10)}, root.Close()
		}
		if !errors.Is(err, ErrNotRoot) {
			return Base{}, err
		}
	}
	f, err := s.openDisk(ref)
	if err != nil {
		return Base{}, err
	}
	defer func() { _ = f.Close() }()
	b, err := DescribeFile(f, ref)
	if err != nil {
		return Base{}, newError(ErrUnavailable, "image %s: %w", ref.Source, err)
	}
	return b, nil
}

// openDisk opens the file of a disk that was fetched.
func (s *Store) openDisk(ref Ref) (*os.File, error) {
	path, exists := s.Path(ref)
	if !exists {
		return nil, newError(ErrUnavailable, "image %s has to be fetched first", ref.Source)
	}
	f, err := os.Open(path) //nolint:gosec // in the store
	if err != nil {
		return nil, newError(ErrUnavailable, "image %s: %w", ref.Source, err)
	}
	return f, nil
}

// OpenBase opens the file of a disk that was fetched, which must be as it was when another disk
// was made on top of it.
func (s *Store) OpenBase(was Base) (*os.File, error) {
	ref := was.FetchedRef()
	f, err := s.openDisk(ref)
	if err != nil {
		return nil, err
	}
	found, err := DescribeFile(f, ref)
	if err == nil && found.HasContentOf(was) {
		return f, nil
	}
	why := ""
	if err != nil {
		why = ": " + err.Error()
	}
	return nil, errors.Join(newError(ErrUnavailable, "image %s was cut off or changed in %s: remove that file, and it is fetched again%s",
		was.Source, f.Name(), why), f.Close())
}

// IsSame reports whether the requested image is the one that a disk stands on, under whatever
// name. A checksum may have been added or left out, or another server may have the same image.
// The content behind a source may have changed since the disk was made of it, so without a
// checksum only the name counts.
func (s *Store) IsSame(have Base, requested Ref) bool {
	switch isFetched := requested.Source.IsFetched(); {
	case have.Ref == requested:
		return true
	case requested.Source.Kind == source.None || have.Source.IsFetched() != isFetched:
		return false
	case !isFetched:
		return requested.Source.Name == have.Path
	case requested.Source == have.Source && requested.Checksum == "":
		return true
	}
	return s.Digest(requested) == DigestOf(have.Path)
}

// Keep makes a hard link in a machine's folder to the file of the store on which a disk is based. If the store has lost
// the file, Keep gives it back: by then the source may have other content, or none. The folder has to be
// on the disk of the store.
func (s *Store) Keep(folder string, b Base) error {
	kept, stored := filepath.Join(folder, b.Path), s.filePath(b.Path)
	isKept := b.isIn(kept)
	_, err := os.Lstat(stored)
	isStored := err == nil
	switch {
	case isKept == isStored:
		return nil
	case isKept:
		return s.giveBack(kept, b.Path)
	}
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) { // it is damaged
		return err
	}
	return os.Link(stored, kept)
}

// giveBack adds a file that a machine has kept to a store whose folder may be missing too.
func (s *Store) giveBack(kept, name string) error {
	_, remove, err := s.Stage()
	if err != nil {
		return err
	}
	remove()
	return s.AddFile(kept, name)
}

// IsStored reports whether a name belongs to a file of a store, which a machine may keep.
func IsStored(name string) bool {
	return strings.HasPrefix(name, imagePrefix) || IsRootName(name) || strings.HasPrefix(name, TemplatePrefix)
}

// isIn reports whether a file has the content, as far as starts of disks check it.
func (b Base) isIn(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // in a machine's folder
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	if b.IsContainer() {
		return (&Root{File: f}).readConfig() == nil
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	probed, err := diskimage.Probe(f, info.Size())
	return err == nil && Base{Format: probed.Format, Size: probed.Size, Stamp: sizeStamp(info)}.HasContentOf(b)
}
