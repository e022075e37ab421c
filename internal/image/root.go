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

// A root is the file system of a container image, with its configuration behind it, in one
// file: both are there or neither. The configuration begins at the end of the file system and
// is followed by zeros. At the very end is the trailer: where the configuration begins, how
// many bytes it has, their SHA-256, and rootMagic.
const (
	trailerSize = 8 + 8 + sha256.Size + len(rootMagic)
	rootMagic   = "DroverRootFile1\n"
)

// Root is the root file system of a container image, opened.
type Root struct {
	// File is the file system, for reading. What follows it in the file is not a part of it.
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

// ErrNotRoot means that what a reference stands for is a disk, not a root.
var ErrNotRoot = errors.New("the image is a disk")

// OpenRoot opens the root that a reference stands for. It fails with ErrNotRoot if it stands for
// a disk, and with ErrUnavailable if it has to be fetched.
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
		return nil, errors.Join(newError(ErrUnavailable, "image %s was damaged in %s: remove that file, and it is fetched again: %w", ref.Source, path, err), f.Close())
	}
	return r, nil
}

// readConfig reads the configuration and checks that the file is whole.
func (r *Root) readConfig() error {
	info, err := r.File.Stat()
	if err != nil {
		return err
	}
	if r.Size = info.Size(); !info.Mode().IsRegular() || r.Size < 3*erofs.BlockSize || r.Size%erofs.BlockSize != 0 {
		return fmt.Errorf("it is not a root: it has %d bytes", r.Size)
	}
	trailer := make([]byte, trailerSize)
	if _, err := r.File.ReadAt(trailer, r.Size-int64(trailerSize)); err != nil {
		return err
	}
	start, size := int64(binary.LittleEndian.Uint64(trailer)), int64(binary.LittleEndian.Uint64(trailer[8:])) //nolint:gosec // checked below
	if string(trailer[trailerSize-len(rootMagic):]) != rootMagic || size < 0 || size > maxConfig || start != r.Size-trailingSize(size) {
		return errors.New("it does not end as a root does")
	}
	text := make([]byte, size)
	if _, err := r.File.ReadAt(text, start); err != nil {
		return err
	}
	if sum := sha256.Sum256(text); !bytes.Equal(sum[:], trailer[16:16+sha256.Size]) {
		return errors.New("its configuration was changed")
	}
	if err := erofs.Check(r.File, start); err != nil {
		return err
	}
	r.Config, err = parseConfig(text)
	return err
}

// trailingSize returns how many bytes follow the file system, with a configuration of that size.
func trailingSize(config int64) int64 {
	const block = int64(erofs.BlockSize)
	return (config + int64(trailerSize) + block - 1) / block * block
}

// writeTrailing writes what follows a file system of the given size.
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
