// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
)

// SetLogAside renames the log of QEMU's output. The suffix is OldLog after a run, and
// FailedLog after a failed start, so that retries keep the log of the previous run.
func (m Machine) SetLogAside(suffix string) error {
	err := os.Rename(m.File(LogFile), m.File(LogFile+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LastOutput returns the end of QEMU's output in one line of at most maxBytes. The guest's
// output is in another file.
func (m Machine) LastOutput(maxBytes int) string {
	f, info, err := atomicfile.Open(m.File(LogFile))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	return printableEnd(f, info.Size(), maxBytes)
}

// LastLine returns the end of a log in one line of at most maxBytes.
func LastLine(log *os.File, maxBytes int) string {
	info, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	return printableEnd(log, info.Size(), maxBytes)
}

func printableEnd(log io.ReaderAt, size int64, maxBytes int) string {
	// Read more than is returned, since Printable omits control characters.
	end := make([]byte, min(size, int64(4*maxBytes)))
	n, err := log.ReadAt(end, size-int64(len(end)))
	if err != nil && n == 0 {
		return err.Error()
	}
	return Printable(string(end[:n]), maxBytes)
}

// Printable returns the end of a text as one line of valid UTF-8 without control characters, of at most maxBytes.
func Printable(text string, maxBytes int) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(text, "")) {
		line = strings.TrimSpace(strings.Map(keepPrintable, line))
		if line != "" {
			lines = append(lines, line)
		}
	}
	line := strings.Join(lines, "; ")
	return strings.ToValidUTF8(line[max(0, len(line)-maxBytes):], "")
}

func keepPrintable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case unicode.IsPrint(r):
		return r
	}
	return -1
}

// CutLog truncates a log that is larger than maxBytes to zero, after copying its end to aside. QEMU keeps the file open
// and appends to it, so the log is not renamed, and output between copy and truncation is lost. The log is truncated even
// if the copy fails, so that a full disk is not filled further.
func CutLog(log, aside *os.File, maxBytes int64) error {
	info, err := log.Stat()
	if err != nil || info.Size() <= maxBytes {
		return err
	}
	if err = aside.Truncate(0); err == nil { // bounded, since a guest may print faster than this copies
		_, err = io.Copy(io.NewOffsetWriter(aside, 0), io.NewSectionReader(log, max(0, info.Size()-maxBytes), 2*maxBytes))
	}
	return errors.Join(err, log.Truncate(0))
}

// LogOptions select a part of the guest's output on its serial console.
type LogOptions struct {
	// Follow waits for further output until the machine has stopped.
	Follow bool
	// Previous selects the output that was last cut off the log.
	Previous bool
	// TailLines limits the output to the last lines; nil means all.
	TailLines *int64
}

// followEvery is the interval between two reads of a log that is followed.
const followEvery = 100 * time.Millisecond

// OpenLog opens the log of the serial console. The machine need not run. Reading ends with ctx.
func (m Machine) OpenLog(ctx context.Context, o LogOptions) (io.ReadCloser, error) {
	name, emptyText := SerialLogFile, "the guest has printed nothing yet"
	if o.Previous {
		name, emptyText = SerialLogFile+OldLog, "nothing was cut off the log of the guest yet"
	}
	file, info, err := atomicfile.Open(m.File(name))
	if err == nil && o.Previous && info.Size() == 0 { // drivers create the file before the first run
		err = errors.Join(fs.ErrNotExist, file.Close())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errorf(ErrNoLog, "%s", emptyText)
	}
	if err != nil {
		return nil, err
	}
	begin, end, err := o.findPart(file)
	switch {
	case err != nil:
		return nil, errors.Join(err, file.Close())
	case o.Follow && !o.Previous:
		return &followedLog{ctx, growingLog{m.IsRunning, file, begin}}, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(file, begin, end-begin), file}, nil
}

// findPart returns where the selected part of a log begins and ends.
func (o LogOptions) findPart(log *os.File) (begin, end int64, err error) {
	info, err := log.Stat()
	if err != nil {
		return 0, 0, err
	}
	if o.TailLines == nil {
		return 0, info.Size(), nil
	}
	begin, err = output.FindTail(log, 0, info.Size(), *o.TailLines)
	return begin, info.Size(), err
}

// followedLog waits for further output.
type followedLog struct {
	ctx context.Context
	log growingLog
}

// Read implements io.Reader.
func (l *followedLog) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if n, err := l.log.readAvailable(p); n > 0 || err != nil {
			return n, err
		}
		if !proc.Pause(l.ctx, followEvery) {
			return 0, context.Cause(l.ctx)
		}
	}
	return 0, nil
}

// Close implements io.Closer.
func (l *followedLog) Close() error { return l.log.file.Close() }

// growingLog reads the serial log of a machine, which grows and is cut.
type growingLog struct {
	isRunning func() (bool, error)
	file      *os.File
	offset    int64
}

// readAvailable reads without waiting. It returns io.EOF at the end of the log if the machine
// does not run. It checks that before it reads, so that it does not miss the last output.
func (l *growingLog) readAvailable(p []byte) (int, error) {
	isRunning, err := l.isRunning()
	if err != nil {
		return 0, err
	}
	n, err := l.file.ReadAt(p, l.offset)
	l.offset += int64(n)
	if n > 0 {
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return 0, err
	}
	info, err := l.file.Stat()
	switch {
	case err != nil:
		return 0, err
	case info.Size() < l.offset: // the log was cut
		l.offset = 0
	case !isRunning:
		return 0, io.EOF
	}
	return 0, nil
}
