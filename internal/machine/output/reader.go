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

// pollEvery is the interval between two looks for further output.
const pollEvery = 50 * time.Millisecond

// Options select what a Reader reads.
type Options struct {
	// From is where to begin, and To where to end; nil means the present end. A reader that waits ends with the run.
	From Positions
	To   *Positions
	// TailLines is how many lines of each stream to read at most; nil means all.
	TailLines *int64
	// IsOver reports whether the run is over, and returns where the output of the next run begins, nil without one. If
	// IsOver is nil, the reader does not wait for output.
	IsOver func() (isOver bool, next *Positions, err error)
	// MissesNone is for a reader who needs all from From on: output that was removed is a terminal.LostOutputError then.
	MissesNone bool
	// Hold holds the guest back until ctx ends. It is called when the reader is HoldAfter bytes behind; nil means never.
	Hold      func(ctx context.Context)
	HoldAfter int64
}

// Reader reads the output of a command, both streams in the order in which it finds them.
type Reader struct {
	Options

	ctx   context.Context
	leave context.CancelFunc
	files [2]*os.File
	// end is how far the output is known to be the run's. With isOver it is all of the run's.
	end    Positions
	isOver bool
	first  int // the stream that is looked at first

	mu sync.Mutex // guards changes of at
	at Positions
}

// Open opens a reader of the files in a machine's directory. Reading ends with ctx.
func Open(ctx context.Context, path func(name string) string, o Options) (*Reader, error) {
	r := &Reader{Options: o, at: o.From, isOver: o.IsOver == nil}
	r.ctx, r.leave = context.WithCancel(ctx)
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
		go r.watchLag() //nolint:contextcheck // it is derived from ctx
	}
	return r, nil
}

// selectPart finds where to begin and to end in a stream.
func (r *Reader) selectPart(stream int, f *os.File) error {
	size, err := sizeOf(f)
	if err != nil {
		return err
	}
	if r.end[stream] = size; r.To != nil {
		r.end[stream] = min(r.To[stream], size)
	}
	if !r.MissesNone {
		r.at[stream], err = r.findKept(stream, r.From[stream])
	}
	if err == nil && r.TailLines != nil {
		r.at[stream], err = FindTail(f, r.at[stream], r.end[stream], *r.TailLines)
	}
	return err
}

// findKept returns the first position from one on whose output is still there.
func (r *Reader) findKept(stream int, from int64) (int64, error) {
	at, err := unix.Seek(int(r.files[stream].Fd()), from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // no output follows
		return from, nil
	}
	return at, err
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n, _, err := r.ReadStream(p)
	return n, err
}

// ReadStream is Read, and reports whether the output is of standard error. An error may be a terminal.LostOutputError:
// the reader goes on after the lost output.
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

// extend moves the end to that of the present output, or of the run if it is over. It reports whether the end has moved.
func (r *Reader) extend() (grew bool, err error) {
	end, err := r.sizes() // before IsOver: this output is the run's if the run is not over afterwards
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

// readAvailable reads output of a stream before its end, without waiting. Output that is freed at the same time reads as
// zeros, so the reader checks afterwards that it was there.
func (r *Reader) readAvailable(stream int, p []byte) (int, error) {
	at := r.at[stream]
	p = p[:max(0, min(int64(len(p)), r.end[stream]-at))]
	n, err := r.files[stream].ReadAt(p, at)
	if n == 0 {
		return 0, terminal.IgnoreEOF(err)
	}
	kept, err := r.findKept(stream, at)
	if err != nil {
		return 0, err
	}
	if kept > at {
		var lost Positions
		lost[stream] = kept - at
		r.move(stream, kept)
		return 0, &terminal.LostOutputError{Stdout: lost[Stdout], Stderr: lost[Stderr]}
	}
	r.move(stream, at+int64(n))
	return n, nil
}

// watchLag holds the guest back while the reader is far behind, also one that does not read at all.
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

// lag returns how many bytes of a stream the reader is behind at most.
func (r *Reader) lag() (behind int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sizes, err := r.sizes()
	return max(sizes[Stdout]-r.at[Stdout], sizes[Stderr]-r.at[Stderr]), err
}

// move moves the reader to a position.
func (r *Reader) move(stream int, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at[stream] = to
}

// Close implements io.Closer. The guest goes on.
func (r *Reader) Close() error {
	r.leave()
	for _, f := range r.files {
		_ = f.Close() // which is only read
	}
	return nil
}

// FindTail returns where the last lines of a file begin, between begin and end. What comes after the last end of a
// line is a line too.
func FindTail(file io.ReaderAt, begin, end, lines int64) (int64, error) {
	if lines == 0 {
		return end, nil
	}
	block := make([]byte, 64<<10)
	for to := end; to > begin; {
		from := max(begin, to-int64(len(block)))
		part := block[:to-from]
		if _, err := file.ReadAt(part, from); err != nil {
			return begin, terminal.IgnoreEOF(err) // the file was cut in between
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
