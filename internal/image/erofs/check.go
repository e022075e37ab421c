// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package erofs

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Check checks that a file begins with a valid superblock of a file system of that size. It
// leaves everything else to the reader of the file.
func Check(file io.ReaderAt, size int64) error {
	b := make([]byte, BlockSize-superOffset)
	if _, err := file.ReadAt(b, superOffset); err != nil {
		return fmt.Errorf("reading its superblock: %w", err)
	}
	sum := order.Uint32(b[4:])
	clear(b[4:8])
	blocks := int64(order.Uint32(b[36:]))
	switch {
	case order.Uint32(b) != superMagic:
		return errors.New("it is not a file system in the format EROFS")
	case sum != ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)):
		return errors.New("its superblock is damaged")
	case blocks*BlockSize != size:
		return fmt.Errorf("its file system has %d bytes, and its file %d", blocks*BlockSize, size)
	}
	return nil
}
