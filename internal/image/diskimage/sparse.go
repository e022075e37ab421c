// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"bytes"
	"io"
)

// holeSize is the size of the blocks that become holes if they have only zeros. On a file system
// with larger blocks some of these holes take space.
const holeSize = 4096

var zeros [holeSize]byte

// SparseWriter writes to a new file from its beginning, and leaves holes for blocks of zeros. At the
// end the caller must truncate the file to Length, since the file may end with a hole.
type SparseWriter struct {
	To io.WriterAt
	// Length is how many bytes were written, zeros included.
	Length int64
}

// Write implements io.Writer.
func (w *SparseWriter) Write(p []byte) (written int, err error) {
	for written < len(p) {
		run, isZero := nextRun(p[written:], w.Length)
		if !isZero {
			if _, err := w.To.WriteAt(run, w.Length); err != nil {
				return written, err
			}
		}
		written, w.Length = written+len(run), w.Length+int64(len(run))
	}
	return written, nil
}

// nextRun returns the beginning of p that consists either of blocks of zeros or of other blocks. For a
// block that is only partly in p, only that part counts.
func nextRun(p []byte, offset int64) (run []byte, isZero bool) {
	for n := 0; n < len(p); {
		size := min(holeSize-int((offset+int64(n))%holeSize), len(p)-n)
		zero := bytes.Equal(p[n:n+size], zeros[:size])
		if n > 0 && zero != isZero {
			return p[:n], isZero
		}
		n, isZero = n+size, zero
	}
	return p, isZero
}
