// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datadisk writes the disk that takes what a container image's machine writes: an empty ext4
// file system, copied from a template that hack/guest-datadisk.sh made. The guest makes it as large as
// the disk at each boot, so nothing on the host formats, mounts or checks it. Start with Write.
package datadisk

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the template
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

//go:embed template.ext4.zst
var template []byte

const (
	// MinBytes is the size of the template's file system, and the smallest disk.
	MinBytes = 64 << 20
	// MaxBytes is the largest disk: what ext4 takes with its blocks.
	MaxBytes = 16 << 40

	blockSize = 4096
)

// Name identifies the template, in a form that can be a part of a file's name.
func Name() string {
	sum := sha256.Sum256(template)
	return hex.EncodeToString(sum[:8])
}

// RoundUp returns the size of a disk that has at least so many bytes.
func RoundUp(size int64) int64 {
	return max(MinBytes, (size+blockSize-1)/blockSize*blockSize)
}

// Write writes an empty file system to a file and makes that as large as the disk. Whatever was in
// the file is lost. The file takes up a few hundred KiB, and has reached the disk when Write returns.
func Write(file *os.File, size int64) error {
	if size < MinBytes || size > MaxBytes || size%blockSize != 0 {
		return fmt.Errorf("the data disk has %d bytes, want a multiple of %d from %d to %d", size, blockSize, MinBytes, int64(MaxBytes))
	}
	reader, err := zstd.NewReader(bytes.NewReader(template), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MinBytes))
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := errors.Join(file.Truncate(0), file.Truncate(size)); err != nil {
		return fmt.Errorf("make the data disk: %w", err)
	}
	if err := copyBlocks(file, reader); err != nil {
		return fmt.Errorf("write the data disk: %w", err)
	}
	return file.Sync()
}

// copyBlocks writes the blocks that have something in them: the file reads as zeros elsewhere.
func copyBlocks(to io.WriterAt, from io.Reader) error {
	block, zeros := make([]byte, blockSize), make([]byte, blockSize)
	for offset := int64(0); offset < MinBytes; offset += blockSize {
		if _, err := io.ReadFull(from, block); err != nil {
			return err
		}
		if bytes.Equal(block, zeros) {
			continue
		}
		if _, err := to.WriteAt(block, offset); err != nil {
			return err
		}
	}
	return nil
}
