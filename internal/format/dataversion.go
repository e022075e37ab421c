// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package format

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"cloudnative.tw/drover/internal/atomicfile"
)

// DataVersion is the newest version of data that this program reads. Raise it together with an addition that an
// earlier version could not refuse record by record, such as a renamed folder. config/debian/preinst has it too.
const DataVersion = firstVersion + extraVersions

// firstVersion is the version of data without such additions.
const firstVersion = 1

// DataVersionFile is the file in a data dir, or in the folder of a driver, that says who can read the folder.
const DataVersionFile = "data-version"

// maxDataVersion is above the size of the file in bytes.
const maxDataVersion = 4 << 10

// dataVersion is the content of DataVersionFile.
type dataVersion struct {
	Header

	// ReadableFrom is the lowest DataVersion of a program that can read the folder.
	ReadableFrom int `json:"readableFrom"`
	// WrittenBy is the version of Drover that has set ReadableFrom, and so can read the folder.
	WrittenBy string `json:"writtenBy"`
}

// CheckFolder fails if only later versions of Drover can read a folder. It changes nothing.
func CheckFolder(folder string) error {
	_, err := readVersion(folder)
	return err
}

// HasVersion reports whether a folder has a version.
func HasVersion(folder string) (bool, error) {
	found, err := readVersion(folder)
	return found.ReadableFrom > 0, err
}

// MarkFolder records that programs with a lower DataVersion than needed cannot read a folder. Call it before the first
// write that they could not read; 0 is for data that every version reads. When it returns, the mark outlasts a power cut.
// A program that is killed afterwards leaves a mark that is higher than necessary, which loses nothing.
func MarkFolder(folder string, needed int) error {
	found, err := readVersion(folder)
	needed = max(needed, firstVersion)
	if err != nil || found.ReadableFrom >= needed {
		return err
	}
	found.ReadableFrom, found.WrittenBy = needed, Version
	text, err := Encode(found)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(folder, DataVersionFile), text, 0o644)
}

// readVersion returns the version of a folder, the zero value if the folder has none. It fails if this program cannot
// read the folder.
func readVersion(folder string) (v dataVersion, err error) {
	path := filepath.Join(folder, DataVersionFile)
	text, _, err := atomicfile.Read(path, maxDataVersion)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	if v, err = Decode[dataVersion](text); err == nil && v.ReadableFrom < 1 {
		err = errors.New("readableFrom must be at least 1")
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", path, err)
	}
	if v.ReadableFrom > DataVersion {
		return v, fmt.Errorf("%s was written by Drover %.40s and can be read from data version %d on, and this Drover %s reads up to %d: install Drover %.40s or a later version; nothing was changed",
			path, v.WrittenBy, v.ReadableFrom, Version, DataVersion, v.WrittenBy)
	}
	return v, nil
}
