// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"bytes"
	"io"
)

// holeSize is the size of the blocks that become holes if they hold only zeros. File systems that
// have larger blocks write some of them.
const holeSize = 4096

var zeros [holeSize]byte

// SparseWriter writes to a new file, from its beginning, without blocks of zeros: those stay holes, as
// they may have been where the image was made. The file has to be truncated to Length at last, since
// its end may be a hole.
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

// nextRun returns the beginning of p, up to where blocks of zeros begin or end. A block that p has only
// a part of counts by that part.
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
