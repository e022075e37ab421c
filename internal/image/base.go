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
)

// Base describes the file of an image as it was when a disk was made on top of it.
// Machines' records contain it.
type Base struct {
	// Path of the file. Of a fetched image it is the name only, which identifies the
	// content, wherever the store is now.
	Path   string `json:"path"`
	Format string `json:"format"`
	Size   int64  `json:"size"`
	Stamp  string `json:"stamp"`
}

// DescribeFile describes an open file as an image from a source.
func DescribeFile(f *os.File, source string) (Base, error) {
	info, err := f.Stat()
	if err != nil {
		return Base{}, err
	}
	path := FilePath(source)
	if IsFetched(source) {
		path = filepath.Base(f.Name())
	}
	probed, err := diskimage.Probe(f, info.Size())
	return Base{Path: path, Format: probed.Format, Size: probed.Size, Stamp: fileStamp(info, source)}, err
}

// Base describes a root as the image below a machine's disk.
func (r *Root) Base() Base {
	return Base{Path: r.Name, Format: FormatRoot, Size: r.Size, Stamp: strconv.FormatInt(r.Size, 10)}
}

// FormatRoot is the format of roots.
const FormatRoot = "erofs"

// HasContentOf reports whether two descriptions of one file are of the same content. The
// path does not count, since the file may have been moved.
func (b Base) HasContentOf(other Base) bool {
	other.Path = b.Path
	return b == other
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
	if b.Format == FormatRoot {
		return (&Root{File: f}).readConfig() == nil
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	probed, err := diskimage.Probe(f, info.Size())
	return err == nil && Base{Format: probed.Format, Size: probed.Size, Stamp: sizeStamp(info)}.HasContentOf(b)
}

// FilePath returns the path of a source that is a file of the host.
func FilePath(source string) string { return strings.TrimPrefix(source, "file://") }

// fileStamp returns a stamp that changes when the image's file does, and not when the
// file is copied with its times, as from a backup. A file of the store is named after its
// content and may have been fetched again, so only truncation shows in its stamp.
func fileStamp(info fs.FileInfo, source string) string {
	if IsFetched(source) {
		return sizeStamp(info)
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
}

func sizeStamp(info fs.FileInfo) string { return strconv.FormatInt(info.Size(), 10) }
