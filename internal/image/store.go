// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/source"
)

// TemplatePrefix is the prefix of the files in the store on which the writable disks of container images are based.
// They are neither images nor sources.
const TemplatePrefix = "data-"

// Names of files in the store. The name of a disk has its digest, the name of a root the digest
// of its image's manifest, and the name of a source its hash. The file of a source names the
// image to which the source led at the last fetch.
const (
	imagePrefix = "sha256-"
	rootPrefix  = "root-"
	refPrefix   = "ref-"
	lockName    = "lock"
)

// maxRefSize bounds how much of a source's file is read.
const maxRefSize = 64 << 10

// Store is a folder of images. Several processes may use it at a time.
type Store struct {
	// The folder of the store is Dir/Sub.
	Dir, Sub string
	Clock    clock.Clock
	// Stage creates a folder for a fetch, on the disk of Dir, and returns a function that
	// removes it. It also creates the store's folder again if a person has removed it. Stage,
	// Sources and Space are needed only for fetches.
	Stage   func() (path string, remove func(), err error)
	Sources *Sources
	// Space accounts for the disk of Dir. All writers to that disk share it.
	Space *diskspace.Disk
	// Convert converts container images, which are rejected if it is nil.
	Convert Converter

	rejections rejections
}

// StoredImage is an image in the store.
type StoredImage struct {
	// Digest is "sha256:" and 64 digits: the digest of a disk, or of the manifest of a root's image.
	Digest string
	// Sources are the sources that led to the image when they were last fetched. There may be
	// none, since a source may lead to another image later.
	Sources   []string
	Name      string // of the file
	Size      int64
	FetchedAt time.Time
}

// Digest returns the digest of an image, sha256: and 64 digits. It is the checksum of the
// reference, or else the digest of the image to which the source led at the last fetch. It is
// empty if the source was not fetched yet, or if its file is damaged.
func (s *Store) Digest(ref Ref) string {
	if ref.Checksum != "" {
		return ref.Checksum
	}
	name := s.nameOf(ref.Source)
	if name == "" {
		return ""
	}
	return DigestOf(name)
}

// nameOf returns the name of the image to which a source led at the last fetch.
func (s *Store) nameOf(from source.Source) string {
	content, _, err := atomicfile.Read(s.refPath(from.Text()), maxRefSize)
	if err != nil {
		return ""
	}
	name, _ := parseRefFile(content)
	isRoot := strings.HasPrefix(name, rootPrefix)
	if !checksumPattern.MatchString(DigestOf(name)) || (isRoot && !from.IsContainer()) {
		return ""
	}
	return name
}

// rootName returns the name of the root of a container image.
func rootName(digest string) string { return rootPrefix + diskName(digest) }

func diskName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// IsRootName reports whether a file of the store is the root of a container image.
func IsRootName(name string) bool { return strings.HasPrefix(name, rootPrefix) }

// DigestOf returns the digest of the image in a file of the store.
func DigestOf(path string) string {
	return strings.Replace(strings.TrimPrefix(filepath.Base(path), rootPrefix), "-", ":", 1)
}

// Path returns the path of an image, and whether the file exists. It returns a root only for the
// source of a container image.
func (s *Store) Path(ref Ref) (path string, exists bool) {
	var names []string
	switch {
	case ref.Checksum == "":
		names = []string{s.nameOf(ref.Source)}
	case ref.Source.IsContainer():
		names = []string{rootName(ref.Checksum), diskName(ref.Checksum)}
	default:
		names = []string{diskName(ref.Checksum)}
	}
	for _, name := range names {
		if name == "" {
			return "", false
		}
		path = s.filePath(name)
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return path, false
}

// List returns the images in the store.
func (s *Store) List() ([]StoredImage, error) {
	entries, err := os.ReadDir(s.filePath(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sources := s.sourcesByName(entries)
	var images []StoredImage
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), imagePrefix) && !IsRootName(entry.Name()) {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		images = append(images, StoredImage{
			Digest: DigestOf(entry.Name()), Sources: sources[entry.Name()],
			Name: entry.Name(), Size: info.Size(), FetchedAt: info.ModTime(),
		})
	}
	return images, nil
}

// sourcesByName returns the sources of the store, by the names of their images.
func (s *Store) sourcesByName(entries []fs.DirEntry) map[string][]string {
	found := map[string][]string{}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), refPrefix) {
			continue
		}
		content, _, err := atomicfile.Read(s.filePath(entry.Name()), maxRefSize)
		if name, source := parseRefFile(content); err == nil && source != "" {
			found[name] = append(found[name], source)
		}
	}
	for _, all := range found {
		slices.Sort(all)
	}
	return found
}

// File returns the path of a file in the store.
func (s *Store) File(name string) string { return s.filePath(filepath.Base(name)) }

func (s *Store) filePath(name string) string { return filepath.Join(s.Dir, s.Sub, name) }

func (s *Store) refPath(source string) string {
	sum := sha256.Sum256([]byte(source))
	return s.filePath(refPrefix + hex.EncodeToString(sum[:]))
}

func formatRefFile(name, source string) []byte { return []byte(name + "\n" + source + "\n") }

func parseRefFile(content []byte) (name, source string) {
	name, source, _ = strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	return filepath.Base(name), source
}
