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

// Base describes an image as it was when a disk was made on top of it. The records of machines
// contain it. The zero value is for disks without an image.
type Base struct {
	Ref

	// Path is the path of the image's file. For a fetched image it is only the name in the
	// store, which identifies the content.
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"` // detects a change of the file
}

// FormatRoot is the format of the roots of container images.
const FormatRoot = "erofs"

// IsContainer reports whether the image is a container image. The guest sees its files through an
// overlay with a writable disk.
func (b Base) IsContainer() bool { return b.Format == FormatRoot }

// Digest returns the digest of a fetched image, and "" for other images. It does not depend on
// where the source leads now.
func (b Base) Digest() string {
	if !b.Source.IsFetched() || b.Path == "" {
		return ""
	}
	return DigestOf(b.Path)
}

// FetchedRef returns a reference that fetches exactly this image again, since it has the digest.
func (b Base) FetchedRef() Ref { return Ref{b.Source, DigestOf(b.Path)} }

// Describe names the image for people, with its digest if known.
func (b Base) Describe() string {
	switch {
	case b.Source.Kind == source.None:
		return "no image"
	case b.Source.IsFetched():
		return b.FetchedRef().Describe()
	}
	return b.Source.String()
}

// HasContentOf reports whether the file has not changed between two descriptions of it. It ignores
// path and reference, since the file may have been moved.
func (b Base) HasContentOf(other Base) bool {
	other.Path, other.Ref = b.Path, b.Ref
	return b == other
}

// DescribeFile describes an open file to which a reference leads.
func DescribeFile(f *os.File, ref Ref) (Base, error) {
	info, err := f.Stat()
	if err != nil {
		return Base{}, err
	}
	probed, err := diskimage.Probe(f, info.Size())
	b := Base{Ref: ref, Path: ref.Source.Name, Format: probed.Format, Size: probed.Size}
	if ref.Source.IsFetched() {
		// The name identifies the content, so the stamp need only show a truncation. It must not
		// change when the file is fetched again.
		b.Path, b.Stamp = filepath.Base(f.Name()), sizeStamp(info)
	} else {
		// The stamp changes with the file. It stays the same when the file is restored from a
		// backup with its times.
		b.Stamp = fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
	}
	return b, err
}

func sizeStamp(info fs.FileInfo) string { return strconv.FormatInt(info.Size(), 10) }

// Describe describes the present file of a fetched image. It fails with ErrUnavailable if the image
// must be fetched first.
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

// openDisk opens the file of a fetched disk.
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

// OpenBase opens the file of a fetched disk. It fails if the file has changed since was was recorded.
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
	cause := ""
	if err != nil {
		cause = ": " + err.Error()
	}
	return nil, errors.Join(newError(ErrUnavailable, "image %s was truncated or changed in %s: remove that file, and Drover fetches it again%s",
		was.Source, f.Name(), cause), f.Close())
}

// IsSame reports whether a requested image is the image of an existing disk. Its name may differ,
// since another server may have the same image, and a checksum may have been added or removed.
// Without a checksum the same source counts as the same image, even if the source leads to other
// content by now.
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

// Keep makes a hard link in a machine's folder to the stored file on which a disk is based. If the store has lost the
// file, Keep adds it to the store again from the hard link, since the source may no longer lead to that content. The
// folder must be on the disk of the store.
func (s *Store) Keep(folder string, b Base) error {
	kept, stored := filepath.Join(folder, b.Path), s.filePath(b.Path)
	isKept := b.isIn(kept)
	_, err := os.Lstat(stored)
	isStored := err == nil
	switch {
	case isKept == isStored:
		return nil
	case isKept:
		return s.restoreFile(kept, b.Path)
	}
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) { // a damaged file
		return err
	}
	return os.Link(stored, kept)
}

// restoreFile adds a kept file to the store. It calls Stage to make the store's folder if that is missing too.
func (s *Store) restoreFile(kept, name string) error {
	_, remove, err := s.Stage()
	if err != nil {
		return err
	}
	remove()
	return s.AddFile(kept, name)
}

// IsStored reports whether a file name is a name of the store, whose file a machine may Keep.
func IsStored(name string) bool {
	return strings.HasPrefix(name, imagePrefix) || IsRootName(name) || strings.HasPrefix(name, TemplatePrefix)
}

// isIn reports whether a file has the content of the image. It checks only the beginning, the size and the stamp.
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
