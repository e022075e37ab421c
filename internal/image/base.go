// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// FilePath returns the path of a source that is a file of the host.
func FilePath(source string) string { return strings.TrimPrefix(source, "file://") }

// fileStamp returns a stamp that changes when the image's file does, and not when the
// file is copied with its times, as from a backup. A file of the store is named after its
// content and may have been fetched again, so only truncation shows in its stamp.
func fileStamp(info fs.FileInfo, source string) string {
	if IsFetched(source) {
		return strconv.FormatInt(info.Size(), 10)
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().UnixNano())
}
