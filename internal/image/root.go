// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"cloudnative.tw/drover/internal/image/erofs"
)

// The file of a root has the file system of a container image, its configuration, zeros, and a
// trailer. One file has all of it, so that no part can be missing. The trailer has the offset,
// the size and the SHA-256 of the configuration, and rootMagic.
const (
	trailerSize = 8 + 8 + sha256.Size + len(rootMagic)
	rootMagic   = "DroverRootFile1\n"
)

// Root is the open root of a container image.
type Root struct {
	// File is the file, open for reading. It begins with the file system.
	File *os.File
	// Name is the name of the file in the store, which identifies the content.
	Name string
	// Digest is the digest of the image's manifest.
	Digest string
	// Size is the size of the file.
	Size   int64
	Config RunConfig
}

// Close closes the file.
func (r *Root) Close() error { return r.File.Close() }

// ErrNotRoot means that a reference leads to a disk.
var ErrNotRoot = errors.New("the image is a disk")

// OpenRoot opens the root to which a reference leads. It fails with ErrNotRoot if the reference
// leads to a disk, and with ErrUnavailable if the image must be fetched first.
func (s *Store) OpenRoot(ref Ref) (*Root, error) {
	path, exists := s.Path(ref)
	name := filepath.Base(path)
	switch {
	case !exists:
		return nil, newError(ErrUnavailable, "image %s has to be fetched first", ref.Source)
	case !IsRootName(name):
		return nil, ErrNotRoot
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // in the store
	if err != nil {
		return nil, newError(ErrUnavailable, "image %s: %w", ref.Source, err)
	}
	r := &Root{File: f, Name: name, Digest: DigestOf(name)}
	if err := r.readConfig(); err != nil {
		return nil, errors.Join(newError(ErrUnavailable, "image %s was damaged in %s: remove that file, and Drover fetches it again: %w", ref.Source, path, err), f.Close())
	}
	return r, nil
}

// readConfig reads the configuration, and checks that the file is complete.
func (r *Root) readConfig() error {
	info, err := r.File.Stat()
	if err != nil {
		return err
	}
	if r.Size = info.Size(); !info.Mode().IsRegular() || r.Size < 3*erofs.BlockSize || r.Size%erofs.BlockSize != 0 {
		return fmt.Errorf("the file is not a root: it has %d bytes", r.Size)
	}
	trailer := make([]byte, trailerSize)
	if _, err := r.File.ReadAt(trailer, r.Size-int64(trailerSize)); err != nil {
		return err
	}
	start, size := int64(binary.LittleEndian.Uint64(trailer)), int64(binary.LittleEndian.Uint64(trailer[8:])) //nolint:gosec // checked below
	if string(trailer[trailerSize-len(rootMagic):]) != rootMagic || size < 0 || size > maxConfig || start != r.Size-trailingSize(size) {
		return errors.New("the file is not a root: its trailer is invalid")
	}
	text := make([]byte, size)
	if _, err := r.File.ReadAt(text, start); err != nil {
		return err
	}
	if sum := sha256.Sum256(text); !bytes.Equal(sum[:], trailer[16:16+sha256.Size]) {
		return errors.New("the configuration in the root was changed")
	}
	if err := erofs.Check(r.File, start); err != nil {
		return err
	}
	r.Config, err = parseConfig(text)
	return err
}

// trailingSize returns how many bytes follow the file system, for a configuration of configSize bytes.
func trailingSize(configSize int64) int64 {
	const block = int64(erofs.BlockSize)
	return (configSize + int64(trailerSize) + block - 1) / block * block
}

// writeTrailing writes the configuration and the trailer behind a file system of a size.
func writeTrailing(f io.WriterAt, size int64, c RunConfig) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	all := make([]byte, trailingSize(int64(len(text))))
	copy(all, text)
	trailer := binary.LittleEndian.AppendUint64(nil, uint64(size)) //nolint:gosec // positive
	trailer = binary.LittleEndian.AppendUint64(trailer, uint64(len(text)))
	sum := sha256.Sum256(text)
	trailer = append(append(trailer, sum[:]...), rootMagic...)
	copy(all[len(all)-trailerSize:], trailer)
	_, err = f.WriteAt(all, size)
	return err
}
