// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package output

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/terminal"
)

// pollEvery is the interval at which files are checked for further output.
const pollEvery = 50 * time.Millisecond

// Options select what a Reader reads.
type Options struct {
	// From and To are where to begin and end. If To is nil, a reader that waits stops at the end of the run, and one
	// that does not wait at the current end.
	From Positions
	To   *Positions
	// TailLines is how many lines of each stream to read at most; nil means all.
	TailLines *int64
	// IsOver reports whether the run is over. next is where the output of the next run begins, nil if there is none. If
	// IsOver is nil, the reader does not wait for output.
	IsOver func() (isOver bool, next *Positions, err error)
	// FailsOnLoss makes the reader fail with a terminal.LostOutputError if output after From was removed. Otherwise
	// the reader begins at the oldest output that is kept.
	FailsOnLoss bool
	// Hold stops the guest's output until ctx ends. It is called when the reader is HoldAfter bytes behind. If Hold is
	// nil, the guest never waits for the reader.
	Hold      func(ctx context.Context)
	HoldAfter int64
}

// Reader reads the output of a command. It alternates between the two streams while both have output.
type Reader struct {
	Options

	ctx    context.Context
	cancel context.CancelFunc
	files  [2]*os.File
	// end is where the output of the run ends, as far as known. If isOver, that is final.
	end    Positions
	isOver bool
	first  int // the stream to read next

	mu     sync.Mutex // guards writes of offset, and reads by watchLag
	offset Positions
}

// Open opens a reader of the files in a machine's directory. Reading ends with ctx.
func Open(ctx context.Context, path func(name string) string, o Options) (*Reader, error) {
	r := &Reader{Options: o, offset: o.From, isOver: o.IsOver == nil}
	r.ctx, r.cancel = context.WithCancel(ctx)
	for stream, name := range FileNames {
		f, _, err := atomicfile.Open(path(name))
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.files[stream] = f
		if err := r.selectPart(stream, f); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	if r.Hold != nil {
		go r.watchLag() //nolint:contextcheck // r.ctx is derived from ctx
	}
	return r, nil
}

// selectPart sets where to begin and end in a stream.
func (r *Reader) selectPart(stream int, f *os.File) error {
	size, err := sizeOf(f)
	if err != nil {
		return err
	}
	if r.end[stream] = size; r.To != nil {
		r.end[stream] = min(r.To[stream], size)
	}
	if !r.FailsOnLoss {
		r.offset[stream], err = r.firstKeptOffset(stream, r.From[stream])
	}
	if err == nil && r.TailLines != nil {
		r.offset[stream], err = FindTail(f, r.offset[stream], r.end[stream], *r.TailLines)
	}
	return err
}

// firstKeptOffset returns the first offset at or after from whose output was not removed.
func (r *Reader) firstKeptOffset(stream int, from int64) (int64, error) {
	kept, err := unix.Seek(int(r.files[stream].Fd()), from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // no output follows
		return from, nil
	}
	return kept, err
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n, _, err := r.ReadStream(p)
	return n, err
}

// ReadStream is like Read, and also reports whether the output is from standard error. After a terminal.LostOutputError
// the next call continues after the lost output.
func (r *Reader) ReadStream(p []byte) (n int, isStderr bool, err error) {
	for {
		for _, stream := range [2]int{r.first, 1 - r.first} {
			if n, err := r.readAvailable(stream, p); n > 0 || err != nil {
				r.first = 1 - stream
				return n, stream == Stderr, err
			}
		}
		if r.isOver {
			return 0, false, io.EOF
		}
		grew, err := r.extend()
		if err != nil {
			return 0, false, err
		}
		if !grew && !r.isOver && !proc.Pause(r.ctx, pollEvery) {
			return 0, false, context.Cause(r.ctx)
		}
	}
}

// extend sets end to the end of the files, or of the run if it is over. It reports whether end has moved.
func (r *Reader) extend() (grew bool, err error) {
	end, err := r.sizes() // read before IsOver: if the run is still not over afterwards, this output belongs to it
	if err != nil {
		return false, err
	}
	isOver, next, err := r.IsOver()
	if err != nil {
		return false, err
	}
	if isOver {
		if end, err = r.sizes(); err != nil {
			return false, err
		}
	}
	for stream := range end {
		if next != nil {
			end[stream] = min(end[stream], next[stream])
		}
	}
	grew, r.end, r.isOver = end != r.end, end, isOver
	return grew, nil
}

// sizes returns the sizes of the files.
func (r *Reader) sizes() (all Positions, err error) {
	for stream, f := range r.files {
		if all[stream], err = sizeOf(f); err != nil {
			return all, err
		}
	}
	return all, nil
}

// readAvailable reads output of a stream up to r.end, without waiting. Removed output reads as zeros, so
// firstKeptOffset checks afterwards that the output was not removed during the read.
func (r *Reader) readAvailable(stream int, p []byte) (int, error) {
	offset := r.offset[stream]
	p = p[:max(0, min(int64(len(p)), r.end[stream]-offset))]
	n, err := r.files[stream].ReadAt(p, offset)
	if n == 0 {
		return 0, terminal.IgnoreEOF(err)
	}
	kept, err := r.firstKeptOffset(stream, offset)
	if err != nil {
		return 0, err
	}
	if kept > offset {
		var lost Positions
		lost[stream] = kept - offset
		r.setOffset(stream, kept)
		return 0, &terminal.LostOutputError{Stdout: lost[Stdout], Stderr: lost[Stderr]}
	}
	r.setOffset(stream, offset+int64(n))
	return n, nil
}

// watchLag holds the guest's output while the reader is far behind, even if the reader has stopped reading.
func (r *Reader) watchLag() {
	isHeld, release := false, func() {}
	defer func() { release() }()
	for r.ctx.Err() == nil {
		behind, err := r.lag()
		switch {
		case err != nil:
			return
		case !isHeld && behind > r.HoldAfter:
			isHeld, release = true, r.startHolding()
		case isHeld && behind <= r.HoldAfter/4:
			isHeld = false
			release()
		}
		proc.Pause(r.ctx, pollEvery)
	}
}

func (r *Reader) startHolding() (release func()) {
	ctx, release := context.WithCancel(r.ctx)
	go r.Hold(ctx)
	return release
}

// lag returns how many bytes the reader is behind in the stream where it is further behind.
func (r *Reader) lag() (behind int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sizes, err := r.sizes()
	return max(sizes[Stdout]-r.offset[Stdout], sizes[Stderr]-r.offset[Stderr]), err
}

func (r *Reader) setOffset(stream int, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offset[stream] = offset
}

// Close implements io.Closer. It releases a guest that waits for the reader.
func (r *Reader) Close() error {
	r.cancel()
	for _, f := range r.files {
		_ = f.Close() // open for reading only, so nothing can be lost
	}
	return nil
}

// FindTail returns the offset of the last lines in the range [begin, end). Bytes after the last newline count as a line.
func FindTail(file io.ReaderAt, begin, end, lines int64) (int64, error) {
	if lines == 0 {
		return end, nil
	}
	block := make([]byte, 64<<10)
	for to := end; to > begin; {
		from := max(begin, to-int64(len(block)))
		part := block[:to-from]
		if _, err := file.ReadAt(part, from); err != nil {
			return begin, terminal.IgnoreEOF(err) // the file was truncated during the read
		}
		for i, b := range slices.Backward(part) {
			if at := from + int64(i) + 1; b == '\n' && at < end {
				if lines--; lines == 0 {
					return at, nil
				}
			}
		}
		to = from
	}
	return begin, nil
}
