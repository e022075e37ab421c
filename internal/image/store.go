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
	"cloudnative.tw/drover/internal/image/room"
	"cloudnative.tw/drover/internal/image/source"
)

// TemplatePrefix begins the names of files in the store that are neither images nor sources: what the disks of
// container images stand on.
const TemplatePrefix = "data-"

// Names in the store: a disk by its digest, a root by the digest of its image's manifest, and a
// source by its hash. The file of a source names the image that the source stood for when it was
// last fetched.
const (
	imagePrefix = "sha256-"
	rootPrefix  = "root-"
	refPrefix   = "ref-"
	lockName    = "lock"
)

// maxRefSize is more than the file of a source has.
const maxRefSize = 64 << 10

// Store is a folder of images. Several processes may use it at a time.
type Store struct {
	// Dir is a folder, and Sub the store's folder in it.
	Dir, Sub string
	Clock    clock.Clock
	// Stage creates a folder for a fetch, on the disk of Dir, and returns a function that
	// removes it. It ensures that the store's folder exists too, since a person may have
	// removed that. Sources says what may be fetched. A Store that fetches nothing needs
	// neither.
	Stage   func() (path string, remove func(), err error)
	Sources *Sources
	// Room is the account of the disk of Dir. All who write there share it. A Store that fetches
	// nothing needs none.
	Room *room.Disk
	// Convert converts container images. A Store without it refuses them.
	Convert Converter

	rejections rejections
}

// StoredImage is an image in the store.
type StoredImage struct {
	// Digest is "sha256:" and 64 digits: that of a disk, or of the manifest that a root is of.
	Digest string
	// Sources are the sources that stood for the image when they were last fetched. There
	// are none if each stands for another image now.
	Sources   []string
	Name      string // of its file
	Size      int64
	FetchedAt time.Time
}

// Digest returns the digest of an image, sha256: and 64 digits. It is the image's
// checksum, or else the digest of the image that its source stood for when it was last fetched. It
// is empty where only a fetch will show it, and where the file that says so is damaged.
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

// nameOf returns the name of the image that a source stood for when it was last fetched.
func (s *Store) nameOf(from source.Source) string {
	content, _, err := atomicfile.Read(s.refPath(from.Text()), maxRefSize)
	if err != nil {
		return ""
	}
	name, _ := parseRefFile(content)
	isRoot := strings.HasPrefix(name, rootPrefix)
	if !checksumPattern.MatchString(DigestOf(name)) || isRoot && !from.IsContainer() {
		return ""
	}
	return name
}

// rootName returns the name of a root. A disk has the same without the prefix.
func rootName(digest string) string { return rootPrefix + diskName(digest) }

func diskName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// IsRootName reports whether a file of the store is the root of a container image.
func IsRootName(name string) bool { return strings.HasPrefix(name, rootPrefix) }

// DigestOf returns the digest of the image in a file of the store.
func DigestOf(path string) string {
	return strings.Replace(strings.TrimPrefix(filepath.Base(path), rootPrefix), "-", ":", 1)
}

// Path returns the path of an image, and whether it exists. Only the source of a container image
// can lead to a root.
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

// sourcesByName returns the sources of the images, by the names of the images' files.
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
